"""turngrad: multi-turn tool-use RL with exact tokens, MCP tools, HUD environments and Fireworks training.

Read the modules in the order data flows through them:
`tasksets → rollout → agent ⇄ (conversation, policy, tools) → episodes → advantages → batch → learner`;
`training` turns the wheel.
"""
