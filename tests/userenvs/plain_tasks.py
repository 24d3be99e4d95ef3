"""Tasks minted by the environment, as hud's own examples do it."""

from plain import fill

tasks = [fill(items=n) for n in range(1, 13)]
