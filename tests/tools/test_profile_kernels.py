"""tools/profile_kernels.py on text in the form of what ncu prints (shortened): launches in groups, shares of the peaks and of the
warps' time, failures told; and what it calls ncu with."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = ["ID", "Kernel Name", "Block Size", "Grid Size", "gpu__time_duration.sum",
           "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "lts__throughput.avg.pct_of_peak_sustained_elapsed",
           "sm__inst_executed.avg.per_cycle_elapsed", "smsp__inst_executed.sum",
           "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
           "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio",
           "smsp__average_warps_issue_stalled_barrier_not_issued_per_issue_active.ratio",
           "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active",
           "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"]
PRODUCT = "void tensorfold::ops::cuda::wide_kernel<tensorfold::ops::cuda::PackedFormat<(int)4>, (int)64>(CUtensorMap_st, Params)"
NORM = "tensorfold::ops::cuda::<unnamed>::norm_rows(tensorfold::ops::cuda::<unnamed>::Params)"


def line(values):
    return ",".join(f'"{value}"' for value in values) + "\n"


def launch(name, duration_ns, instructions, block="(128, 1, 1)", waits=(3, 1), l2=70, issue=1.5):
    return line([0, name, block, "(132, 1, 1)", duration_ns, 41.6, l2, issue, instructions, *waits, 9, 0, 87.5])


def output(*lines):
    return "==PROF== Connected\nwhat the program prints\n" + line(COLUMNS) + line([""] * len(COLUMNS)) + "".join(lines)


def read(tmp_path, text):
    (tmp_path / "kept.txt").write_text(text)
    words = [sys.executable, str(ROOT / "tools/profile_kernels.py"), "--read", str(tmp_path / "kept.txt")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout.splitlines(), ended.stderr


def test_launches_of_one_kind_are_one_line(tmp_path):
    text = output(launch(PRODUCT, "1,000", 1000), launch(PRODUCT, "3,000", 1050), launch(NORM, "500", 10), launch(PRODUCT, "5,000", 1000))
    code, lines, errors = read(tmp_path, text)
    assert code == 0 and errors == ""
    assert len(lines) == 3
    assert lines[1].split() == ["3", "3.0", "42%", "70%", "38%", "88%", "wide_kernel<PackedFormat<(int)4>,", "(int)64>", "(132,", "1,", "1)",
                                "(128,", "1,", "1):", "barrier", "75", "%,", "selected", "25", "%"]
    assert lines[2].split()[:2] == ["1", "0.5"] and "norm_rows (132, 1, 1)" in lines[2]


def test_layers_of_one_grid_and_different_work_are_told_apart(tmp_path):
    code, lines, _ = read(tmp_path, output(launch(PRODUCT, "1,000", 1000), launch(PRODUCT, "2,000", 2000), launch(PRODUCT, "9", 1000, "(256, 1, 1)")))
    assert code == 0
    assert [row.split()[:2] for row in lines[1:]] == [["1", "1.0"], ["1", "2.0"], ["1", "0.0"]]


def test_a_launch_that_could_not_be_measured_is_left_out_and_told(tmp_path):
    failed = line([1, PRODUCT, "(0, 0, 0)", "(0, 0, 0)", *["nan"] * 10])
    cut_off = line([2, PRODUCT, "(0, 0, 0)"])
    good = launch(PRODUCT, "1,000", 1000)
    told = "launches that were begun and couldn't be measured: "
    for text, expected in ((output(good, failed), told + "1\n"), (output(good, failed, cut_off), told + "2\n"),
                           (output(good) + "==ERROR== LaunchFailed\n", "==ERROR== LaunchFailed\n")):
        code, lines, errors = read(tmp_path, text)
        assert code == 1
        assert len(lines) == 2 and lines[1].split()[0] == "1"
        assert errors == expected


def test_a_warning_is_told_and_no_failure(tmp_path):
    code, _, errors = read(tmp_path, output(launch(NORM, "500", 10)) + "==WARNING== clocks weren't locked\n")
    assert code == 0 and errors == "==WARNING== clocks weren't locked\n"


def test_counters_that_are_not_there_are_dashes(tmp_path):
    code, lines, _ = read(tmp_path, output(launch(NORM, "500", 10, l2="n/a", issue="nan")))
    assert code == 0 and lines[1].split()[:6] == ["1", "0.5", "42%", "-", "-", "88%"]


def run_with_ncu(tmp_path, script, *words):
    """With a program in ncu's place that keeps its arguments in the file `asked`."""
    (tmp_path / "ncu").write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/asked\n{script}\n")
    (tmp_path / "ncu").chmod(0o755)
    ended = subprocess.run([sys.executable, str(ROOT / "tools/profile_kernels.py"), *words], capture_output=True, text=True, check=False,
                           env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    return ended.returncode, ended.stdout, ended.stderr, (tmp_path / "asked").read_text().splitlines()


def test_what_ncu_is_asked_for(tmp_path):
    (tmp_path / "printed").write_text(output(launch(NORM, "500", 10), launch(NORM, "500", 10)))
    shows = f"cat {tmp_path}/printed"
    code, text, errors, asked = run_with_ncu(tmp_path, shows, "--kernels", "norm", "--skip", "7", "--count", "2", "--save",
                                             str(tmp_path / "kept"), "program", "--rows", "1")
    assert code == 0 and errors == "" and "norm_rows" in text
    assert asked[-3:] == ["program", "--rows", "1"]
    for words in (["--kernel-name", "regex:norm"], ["--launch-skip", "7"], ["--launch-count", "2"], ["--section", "WarpStateStats"]):
        assert any(asked[i : i + 2] == words for i in range(len(asked)))
    assert (tmp_path / "kept").read_text() == (tmp_path / "printed").read_text()
    _, _, _, asked = run_with_ncu(tmp_path, shows, "--graphs", "--count", "2", "program")
    assert "--kernel-name" not in asked and asked[asked.index("--graph-profiling") + 1] == "graph"


def test_fewer_launches_than_asked_for_are_told(tmp_path):
    (tmp_path / "printed").write_text(output(launch(NORM, "500", 10)))
    code, _, errors, _ = run_with_ncu(tmp_path, f"cat {tmp_path}/printed", "--count", "2", "program")
    assert code == 0 and "only 1 of 2 launches came" in errors
    code, _, errors, _ = run_with_ncu(tmp_path, f"cat {tmp_path}/printed; exit 3", "--count", "2", "program")
    assert code == 1 and "ncu ended with 3" in errors and "failed before all were measured" in errors


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    words = [sys.executable, str(ROOT / "tools/profile_kernels.py"), "--read", str(tmp_path / "none")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "No such file" in ended.stderr and "Traceback" not in ended.stderr


def test_nothing_measured_is_an_error(tmp_path):
    for text in ("==PROF== Connected\nAvailable Kernels:\n1. other\n", output()):
        code, lines, _ = read(tmp_path, text)
        assert code == 1 and "no launch was measured" in lines[0]
