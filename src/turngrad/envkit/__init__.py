"""What an environment's author imports: write a `World`, get a hud environment.

Example:
    class Till(World):
        def __init__(self, start: int) -> None:
            self.balance = start

        @tool
        def pay_in(self, amount: int) -> str:
            "Pay an amount in."
            self.balance += amount
            return f"balance {self.balance}"

        def turns(self):
            yield "Pay in 5."
            yield "And 7 more."

        def grade(self, answer: str) -> float:
            return float(self.balance == 12)


    env = environment("shop", till=Till)
"""

from turngrad.envkit.environment import environment
from turngrad.envkit.guard import Guard, GuardStopped
from turngrad.envkit.schema import tool
from turngrad.envkit.world import Call, Grade, RawResult, Tool, ToolError, World, WorldLost

__all__ = [
    "Call",
    "Grade",
    "Guard",
    "GuardStopped",
    "RawResult",
    "Tool",
    "ToolError",
    "World",
    "WorldLost",
    "environment",
    "tool",
]
