"""What each kind of layer keeps of a request: full attention, sliding windows, states.

Equal groups that follow one another (three of states, five of windows) decide alike, each about blocks of its
own: one object makes their decisions once and applies them to each in turn, which is vLLM's order.
"""
