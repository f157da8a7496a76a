"""Work for the benchmarks: real traces beside the checkout, and sessions made on the fly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from replicast.sim.engine.step_time import StepTime
from replicast.sim.workload import Content, Segment, Session, Turn

STEP_TIME = StepTime.from_seconds(
    memory_fixed_s=0.006,
    memory_per_kv_token_s=1.0e-8,
    memory_per_seq_s=2e-5,
    compute_fixed_s=0.002,
    compute_per_token_s=1.2e-5,
    compute_per_pair_s=1e-10,
)


def chats(number: int, turns: int = 4, prompts: int = 1, outputs: int = 1) -> Iterator[Session]:
    """Sessions that share a system prompt and grow by their replies; made when asked for.

    Delays differ, 0.5 to 3.5 s: with equal ones the sessions of a lone replica fall into step, so that it has
    fewer steps a request than one of many.

    `prompts` and `outputs` make these so many times as long, at equal numbers of segments.
    """
    system, fresh, reply = 480 * prompts, 320 * prompts, 40 * outputs
    for s in range(number):
        own = 1 + s
        made = []
        for t in range(turns):
            length = fresh + (fresh + reply) * t
            made.append(
                Turn(
                    turn_id=f"{t}",
                    agent="main",
                    depends_on=(t - 1,) if t else (),
                    delay_s=0.5 + (s * 7919 + t * 2903) % 3001 / 1000,
                    prompt=(Segment(0, 0, system), Segment(own, 0, length)),
                    output=(Segment(own, length, reply),),
                    num_prompt_tokens=system + length,
                    num_output_tokens=reply,
                )
            )
        yield Session(str(s), tuple(made))


def longer(session: Session, prompts: int, outputs: int) -> Session:
    """The session with prompts and outputs so many times as long, cut into the same segments."""

    def grown(content: Content, times: int) -> Content:
        return tuple(Segment(stream, offset * times, length * times) for stream, offset, length in content)

    turns = tuple(
        replace(
            turn,
            prompt=grown(turn.prompt, prompts),
            num_prompt_tokens=turn.num_prompt_tokens * prompts,
            output=(Segment(-1 - i, 0, turn.num_output_tokens * outputs),)
            if outputs > 1
            else grown(turn.output, prompts),
            num_output_tokens=turn.num_output_tokens * outputs,
        )
        for i, turn in enumerate(session.turns)
    )
    return replace(session, turns=turns)
