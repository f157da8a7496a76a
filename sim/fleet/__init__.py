"""Many replicas, a router and the clients, on SimPy's clock.

`run.simulate` is the way in. A turn goes `clients` -> `dispatch` (router, front end) -> `replica` (engine)
-> `dispatch` (delivery, `records`) -> `clients`, which then know what to send next. `events` fixes what
happens first at one tick, `timeline` watches each engine, `result` is what comes out.
"""
