"""An environment file as an author writes it; the kit's and the pool's tests play it."""

from collections.abc import Iterator

from turngrad.envkit import Grade, ToolError, World, environment, tool


class Bank(World):
    """An account that the user wants changed twice."""

    def __init__(self, start: int, amounts: list[int]) -> None:
        self.balance = start
        self.start = start
        self.amounts = amounts
        self.right: list[bool] = []

    @tool
    def pay_in(self, amount: int, times: int = 1) -> str:
        """Pay an amount into the account.

        Args:
            amount: what to pay in,
                in whole units
            times: how often
        """
        if amount < 0:
            raise ToolError("an amount cannot be negative")
        self.balance += amount * times
        return f"balance {self.balance}"

    @tool
    async def look(self) -> dict[str, int]:
        """Look at the balance."""
        return {"balance": self.balance}

    def turns(self) -> Iterator[str]:
        total = self.start
        for amount in self.amounts:
            yield f"Pay in {amount}."
            total += amount
            self.right.append(self.balance == total)

    def grade(self, answer: str) -> Grade:
        return Grade(sum(self.right) / len(self.amounts), {"answer": answer})


env = environment("bank", bank=Bank)
