"""The engine of hybrid models: several KV groups over one pool of blocks.

Blocks of full attention are runs of content, as those of plain models are, so that a prompt does not cost its
length; what is cached of windows and states are single blocks in the same free queue (`block_pool.py`,
`groups/`). What must not cost anything is a step in which a request does nothing to its blocks: `engine.py`
makes such steps at once, as the engine of plain models does, and touches a request when something is due.
"""
