"""Where the training loop is in a program's code, and whether the program is still in it."""

from __future__ import annotations

import sys

from pyrometer.train.steps import training_loop


def inside(loops: list[training_loop.Loop]) -> list[bool]:
    return [one.contains(sys._getframe(1)) for one in loops]


def test_a_loop_goes_on_until_it_is_over():
    loops: list[training_loop.Loop] = []
    for _ in range(3):
        loops = loops or training_loop.enclosing_loops(sys._getframe())[:1]
        assert inside(loops) == [True]
    assert inside(loops) == [False]


def test_it_is_the_outermost_loop_of_a_function():
    loops: list[training_loop.Loop] = []
    for _ in range(2):
        for _ in range(2):
            loops = loops or training_loop.enclosing_loops(sys._getframe())[:1]
        assert inside(loops) == [True]
    assert inside(loops) == [False]


def test_a_loop_over_optimizers_in_a_function_is_not_the_training_loop():
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


def test_a_loop_of_a_module_and_files_that_do_not_count():
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
