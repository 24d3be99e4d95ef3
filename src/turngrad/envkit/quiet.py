"""Silence for one harmless noise of hud's server and client on Python 3.11 and 3.12.

Cancelling a connection handler makes asyncio's own streams callback log a 12-line traceback (105 lines for three rollouts);
nothing has gone wrong. Only that record is dropped.
"""

from __future__ import annotations

import asyncio
import logging


def drop_stream_cancellations() -> None:
    """Install the filter on asyncio's logger, once."""
    logger = logging.getLogger("asyncio")
    if _worth_logging not in logger.filters:
        logger.addFilter(_worth_logging)


def _worth_logging(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
    return not (cancelled and "StreamReaderProtocol" in record.getMessage())
