#!/usr/bin/env python3
"""Adds up the test runners' results, lists what was skipped and why, and prints the summary line.

usage: summarise_results.py RESULTS_FOLDER STEPS_PASSED STEPS_FAILED
Fails when a test failed, when a runner left no result, or when more tests were skipped than tests/expected_skips lists
(one shell pattern a line, '#' comments).
"""
import fnmatch
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


ALIKE_LISTED_MAX = 12


def skip_reason(case, skip):
    """What a test said when it skipped itself: the line after GoogleTest's "Skipped", or pytest's message."""
    lines = (case.findtext("system-out") or "").splitlines()
    for line, following in zip(lines, lines[1:]):
        if line.rstrip().endswith(": Skipped"):
            return following.strip()
    return (skip.get("message") if skip is not None else None) or "no reason given"


def read(path):
    passed, failed, skipped = 0, [], []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = (case.get("name") or "").split("  # GetParam()")[0]
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            failed.append(name)
        elif skip is not None or case.get("status") in ("notrun", "disabled"):
            skipped.append((name, skip_reason(case, skip)))
        else:
            passed += 1
    return passed, failed, skipped


def main():
    folder = pathlib.Path(sys.argv[1])
    passed, failed, skipped = int(sys.argv[2]), [], []
    failed_steps = int(sys.argv[3])
    for name in ("ctest.xml", "pytest.xml"):
        path = folder / name
        if not path.exists():
            failed.append(f"{name}: the runner left no result")
            continue
        p, f, s = read(path)
        if p + len(f) + len(s) == 0:
            failed.append(f"{name}: no test ran")
        passed += p
        failed += f
        skipped += s
    root = pathlib.Path(__file__).resolve().parent.parent
    expected = [line.split("#")[0].strip() for line in (root / "tests/expected_skips").read_text().splitlines()]
    expected = [line for line in expected if line]
    unexpected = []
    alike = {}  # (pattern, reason) -> names: what a whole program skips for one reason is one line
    for name, reason in skipped:
        pattern = next((each for each in expected if fnmatch.fnmatchcase(name, each)), None)
        if pattern is None:
            print(f"SKIPPED (not expected): {name}: {reason}")
            unexpected.append(name)
        else:
            alike.setdefault((pattern, reason), []).append(name)
    for (pattern, reason), names in alike.items():
        if len(names) > ALIKE_LISTED_MAX:
            print(f"SKIPPED: {len(names)} tests of {pattern}: {reason}")
            continue
        for name in names:
            print(f"SKIPPED: {name}: {reason}")
    for name in failed:
        print(f"FAILED: {name}")
    if unexpected:
        print(f"{len(unexpected)} skipped test(s) are not in tests/expected_skips")
    total_failed = len(failed) + failed_steps + len(unexpected)
    print(f"{passed} passed, {total_failed} failed, {len(skipped) - len(unexpected)} skipped")
    return 1 if total_failed else 0


sys.exit(main())
