"""A run, made visible: `page` writes it as one HTML file, `terminal` prints an episode.

Data flows `folder` (rows and episode files as they lie on disk) -> `training` (which tokens trained, with what advantage)
-> `blocks` and `decode` (ids to text, text to roles) -> `pages`, `tables`, `figures`, `charts` (for a browser) -> `page`.
Invariant: an episode is untrusted text. It reaches a browser as JSON data that scripts put into text nodes, and a terminal
with its control characters spelled out; nothing in it is markup anywhere.
"""
