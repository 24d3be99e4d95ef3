"""The embedded engine: Fireworks' training and sampling protocol on torch, on this machine.

Read in the order of a request: `server` (process) -> `api` (HTTP) -> `wire` (what a body may hold) -> `futures` (order,
long poll) -> `engine` (one worker thread) -> `trainer` / `sampler` -> `decoder` (the model) and `store` (the disk).
Nothing here imports the rest of turngrad; the rest reaches it over the wire only.
"""
