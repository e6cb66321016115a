"""Defects by which an older version touches what a newer one keeps."""

from __future__ import annotations

from mutants.mutant import INCLUDE, LUA, Mutant

NEWER = "tests/faults/test_newer_layout.py::"
LEFT = NEWER + "test_so_is_what_a_foreign_client_left_of_it"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="newer-layout-worked-on",
        defect="Steps work on a queue whose layout they do not know.",
        file=INCLUDE + "queue.lua",
        old="  refuse_newer(meta[3])\n",
        new="",
        test=NEWER + "test_a_queue_of_a_newer_layout_is_refused_by_every_call_and_nothing_of_it_is_touched",
    ),
    Mutant(
        name="newer-layout-deleted",
        defect="Delete begins with a queue whose layout it does not know.",
        file=LUA + "delete.lua",
        old="refuse_unread()\n",
        new="",
        test=NEWER + "test_a_queue_of_a_newer_layout_is_refused_by_every_call_and_nothing_of_it_is_touched",
    ),
    Mutant(
        name="newer-layout-made-anew",
        defect="Create removes what a newer version knows of a queue that a foreign client took away.",
        file=INCLUDE + "removal.lua",
        old="  refuse_unread()\n",
        new="",
        test=LEFT,
    ),
    Mutant(
        name="newer-layout-forgotten",
        defect="Any step forgets what a newer version knows of a queue that a foreign client took away.",
        file=INCLUDE + "queue.lua",
        old="local function forget_own_keys()\n  refuse_unread()\n",
        new="local function forget_own_keys()\n",
        test=LEFT,
    ),
    Mutant(
        name="newer-layout-visited",
        defect="The sweeper looks at a queue that it must leave alone again and again.",
        file="engine/sweeper.py",
        old="        except NewerLayout:",
        new="        except ZeroDivisionError:",
        test="tests/unit/test_sweeper.py::test_a_queue_that_a_newer_version_keeps_is_not_visited_again",
    ),
    Mutant(
        name="newer-layout-called-away",
        defect="Metrics tell the store as away while a newer version keeps a queue.",
        file="engine/counting/census.py",
        old="describe_many(own, only_known=True,",
        new="describe_many(own,",
        test=NEWER + "test_a_list_fails_rather_than_leave_it_out_and_metrics_do_without_it",
    ),
)
