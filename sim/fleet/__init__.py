"""Many replicas, a router and the clients, on SimPy's clock.

`run.simulate` is the way in, `assembly` wires the pieces. `source` hands out sessions; a turn goes `clients`
-> `dispatch` (router, front end) -> `replica` (engine) -> `dispatch` (delivery, `recorder`) -> `clients`,
which then know what to send next. `events` fixes what happens first at one tick, `timeline` watches each
engine, `lifecycle` lets replicas come and go, `record_file` keeps records of any number on disk, `result` is
what comes out.
"""
