"""What `top` says of the stage that limits, and where it draws in place."""

from __future__ import annotations

from test_observe import channel_look, limiting_line


def test_a_full_channel_that_nobody_receives_from_and_nobody_sleeps_for_does_not_limit_first_of_all():
    served = channel_look(
        "c0", full_share=0.5, sender_pids=[1], receiver_pids=[2], limiting={"end": "receiving", "pids": [2]}
    )
    waits = channel_look("c2", empty_share=0.9, sender_pids=[3], receiver_pids=[2])
    left = channel_look("c1", queued=9, sender_pids=[1], receiver_pids=[], limiting={"end": "receiving", "pids": []})
    assert limiting_line(served, waits, left) == "What limits: the process that receives from c0, 2."
    assert limiting_line(left) == "What limits: nobody receives from c1."
