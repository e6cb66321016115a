"""Defects of Puts whose payloads go through the gate."""

from __future__ import annotations

from mutants.mutant import INCLUDE, Mutant

GATES = "tests/integration/test_gates.py::"
SAME = GATES + "test_the_same_is_kept_as_without_a_gate"
GATE = INCLUDE + "gate.lua"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="shut-by-what-is-over",
        defect="Where something was due once no gate opens any more, and each step looks for what is due.",
        file="store/lua/include/commit.lua",
        old="    set(S, 'due_said', 0) ",
        new="    ",
        test="tests/integration/test_gates.py::test_the_gate_opens_again_when_all_that_was_due_is_done",
    ),
    Mutant(
        name="full-within-a-transaction",
        defect="A store that becomes full within a transaction is told as a defect.",
        file="store/trouble.py",
        old=".removeprefix(_ABORTED)",
        new="",
        test="tests/integration/test_gates.py::test_what_befalls_the_store_within_the_transaction_is_told_as_what_it_is",
    ),
    Mutant(
        name="gate-past-the-bound",
        defect="A batch for which there is no room goes through the gate.",
        file=GATE,
        old=" and room_of(S) >= count",
        new="",
        test=SAME,
    ),
    Mutant(
        name="gate-before-what-is-due",
        defect="A batch passes a delayed message that has been due before.",
        file=GATE,
        old="and (S.due_said == 0 or S.due_said > S.now)",
        new="",
        test=SAME,
    ),
    Mutant(
        name="gate-without-time-to-live",
        defect="What goes through the gate never expires, whatever the policy says.",
        file=GATE,
        old="and policy_of(S, 'time_to_live_ms') == 0 ",
        new="",
        test=SAME,
    ),
    Mutant(
        name="gate-past-foreign-producer",
        defect="A batch is put while a foreign client holds the producer role.",
        file=GATE,
        old="and role_is_free('producer') ",
        new="",
        test=SAME,
    ),
    Mutant(
        name="gate-past-producers-in-line",
        defect="A batch overtakes the producers that wait for room.",
        file=GATE,
        old=" and not has_extra(S, K.producers)",
        new="",
        test=GATES + "test_none_is_opened_past_a_producer_in_line",
    ),
    Mutant(
        name="filler-left-in-line",
        defect="What holds the place of an empty line while the gate is open is delivered as a message.",
        file=GATE,
        old="  if redis.call('HGET', K.meta, 'seen_len') == '0' then redis.call('RPOP', K.q) end\n",
        new="",
        test=SAME,
    ),
    Mutant(
        name="filler-left-by-who-may-not-rename",
        defect="A gate that could not be opened leaves its filler in the line.",
        file=GATE,
        old="  if S.size == 0 then redis.call('DEL', K.q) end\n",
        new="",
        test=GATES + "test_a_user_who_may_not_do_all_of_it_puts_without_a_gate",
    ),
    Mutant(
        name="transaction-not-permitted",
        defect="What should be a transaction is done command by command for a user who may not begin one.",
        file="store/gates.py",
        old="return not refused",
        new="return True",
        test=GATES + "test_a_user_who_may_not_do_all_of_it_puts_without_a_gate",
    ),
    Mutant(
        name="frames-through-the-gate",
        defect="A payload that begins like a frame is put as it is, and read as a frame.",
        file="store/gates.py",
        old="if True in map(bytes.startswith, messages.payloads, repeat(frames.MAGIC)):",
        new="if False:",
        test=GATES + "test_what_looks_like_a_frame_and_what_is_little_is_put_without_a_gate",
    ),
    Mutant(
        name="shut-gate-tried-again-and-again",
        defect="Each Put into a full queue sends its payloads twice.",
        file="store/gates.py",
        old="        if gate.is_shut:",
        new="        if False:",
        test=GATES + "test_where_a_gate_was_shut_none_is_tried_for_a_while",
    ),
)
