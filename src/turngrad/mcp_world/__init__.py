"""Any MCP server as an environment: prompts and graders in a file, the tools of a server that knows nothing of training.

The data flows: `server` (which one) and `tasks` (what to ask, how to grade) → `world` (an episode, on the kit) ⇄
`connection` (a session with a server of the episode's own, over `stdio` or HTTP) → `graders` (the reward).
"""
