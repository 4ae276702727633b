"""tools/profile_kernels.py on what ncu prints: launches in groups, shares of the peaks and of the warps' time, failures told."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = ["ID", "Kernel Name", "Block Size", "Grid Size", "gpu__time_duration.sum",
           "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "lts__throughput.avg.pct_of_peak_sustained_elapsed",
           "sm__inst_executed.avg.per_cycle_elapsed", "smsp__inst_executed.sum",
           "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
           "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio",
           "smsp__average_warps_issue_stalled_barrier_not_issued_per_issue_active.ratio"]
PRODUCT = "void tensorfold::ops::cuda::wide_kernel<tensorfold::ops::cuda::PackedFormat<(int)4>, (int)64>(CUtensorMap_st, Params)"
NORM = "tensorfold::ops::cuda::<unnamed>::norm_rows(tensorfold::ops::cuda::<unnamed>::Params)"


def line(values):
    return ",".join(f'"{value}"' for value in values) + "\n"


def launch(name, duration_ns, instructions, block="(128, 1, 1)", waits=(3, 1)):
    return line([0, name, block, "(132, 1, 1)", duration_ns, 41.6, 70, 1.5, instructions, *waits, 9])


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
    assert lines[1].split() == ["3", "3.0", "42%", "70%", "38%", "wide_kernel<PackedFormat<(int)4>,", "(int)64>", "(132,", "1,", "1)",
                                "(128,", "1,", "1):", "barrier", "75", "%,", "selected", "25", "%"]
    assert lines[2].split()[:2] == ["1", "0.5"] and "norm_rows (132, 1, 1)" in lines[2]


def test_layers_of_one_grid_and_different_work_are_told_apart(tmp_path):
    code, lines, _ = read(tmp_path, output(launch(PRODUCT, "1,000", 1000), launch(PRODUCT, "2,000", 2000), launch(PRODUCT, "9", 1000, "(256, 1, 1)")))
    assert code == 0
    assert [row.split()[:2] for row in lines[1:]] == [["1", "1.0"], ["1", "2.0"], ["1", "0.0"]]


def test_a_launch_that_could_not_be_measured_is_left_out_and_told(tmp_path):
    failed = line([1, PRODUCT, "(0, 0, 0)", "(0, 0, 0)", "nan", "nan", "nan", "nan", "nan", "nan", "nan", "nan"])
    code, lines, errors = read(tmp_path, output(launch(PRODUCT, "1,000", 1000), failed) + "==ERROR== LaunchFailed\n")
    assert code == 1
    assert len(lines) == 2 and lines[1].split()[0] == "1"
    assert errors == "==ERROR== LaunchFailed\n"


def test_nothing_measured_is_an_error(tmp_path):
    for text in ("==PROF== Connected\nAvailable Kernels:\n1. other\n", output()):
        code, lines, _ = read(tmp_path, text)
        assert code == 1 and "no launch was measured" in lines[0]
