"""Where the training loop is in a program's code, and whether the program is still in it."""

from __future__ import annotations

import sys

from pyrometer.train.steps import training_loop


def inside(loops: list[training_loop.Loop]) -> list[bool]:
    return [one.contains(sys._getframe(1)) for one in loops]


def test_loop_contains_its_frame_until_it_ends():
    loops: list[training_loop.Loop] = []
    for _ in range(3):
        loops = loops or training_loop.enclosing_loops(sys._getframe())[:1]
        assert inside(loops) == [True]
    assert inside(loops) == [False]


def test_enclosing_loop_is_the_outermost_of_its_function():
    loops: list[training_loop.Loop] = []
    for _ in range(2):
        for _ in range(2):
            loops = loops or training_loop.enclosing_loops(sys._getframe())[:1]
        assert inside(loops) == [True]
    assert inside(loops) == [False]


def test_inner_function_loop_is_not_the_training_loop():
    seen: list[list[training_loop.Loop]] = []
    backward: list[list[bool]] = []

    def step() -> None:
        if seen:
            backward.append(inside(seen[0])[:2])
        for _ in range(2):
            seen.append(training_loop.enclosing_loops(sys._getframe()))

    for _ in range(2):
        step()
    assert backward == [[False, True]]  # the nearer one is only a part


def test_enclosing_loops_finds_module_loops_and_skips_libraries():
    script = "while not done:\n    found.append(around(frame()))\n    done = True\nafter = around(frame())\n"
    names = {"found": [], "done": False, "around": training_loop.enclosing_loops, "frame": sys._getframe}
    exec(compile(script, "/home/ada/torch/train.py", "exec"), names)
    ((nearest, *_),) = names["found"]
    assert nearest.code.co_filename == "/home/ada/torch/train.py"
    assert nearest not in names["after"]
    names |= {
        "found": [],
        "done": False,
        "around": lambda frame: training_loop.enclosing_loops(frame, ["/home/ada/torch/"]),
    }
    exec(compile(script, "/home/ada/torch/train.py", "exec"), names)
    assert all(one.code.co_filename != "/home/ada/torch/train.py" for one in names["found"][0])
