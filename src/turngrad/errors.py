"""What can go wrong, by who has to act: the user, the run as a whole, or one rollout."""

from __future__ import annotations

from turngrad.episodes import Failure


class UserError(Exception):
    """A mistake in a command, file or setting: shown as one sentence, exit status 2, no traceback."""


class RunError(Exception):
    """The run cannot go on (a key refused, the engine gone, contract errors in a row): state is saved, then one sentence."""


class RolloutError(Exception):
    """One rollout failed for a reason that is not the policy's (C7); `failure` is its class."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure
