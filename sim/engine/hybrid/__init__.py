"""The engine of hybrid models: several KV groups over one pool of blocks.

Their blocks are hundreds of tokens wide, so each can have a number of its own (`block_pool.py`, `groups/`).
What must not cost anything is a step in which a request does nothing to them: `engine.py` makes such steps
at once, as the engine of plain models does, and touches a request when something of its own is due. And a
prompt of full attention must not cost its length: its blocks are hit, held and let go in stretches
(`stretch.py`).
"""
