"""Does an environment hold what training will demand of it? `probe` plays it, `checks` looks at what came of it.

`made_up` invents arguments by a tool's schema, as a policy does before it has learnt anything.
"""
