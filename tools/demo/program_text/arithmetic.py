"""Sums, comparisons, sequences and small word problems, with the steps as a short thought in a part of them."""

import topics
from chat_format import exchange

SAY = {"+": ["What is {a} + {b}?", "{a} + {b} = ?", "Add {a} and {b}.", "What is {a} plus {b}?", "Calculate {a} + {b}.",
             "How much is {a} + {b}?", "What is the sum of {a} and {b}?"],
       "-": ["What is {a} - {b}?", "{a} - {b} = ?", "Subtract {b} from {a}.", "What is {a} minus {b}?", "Calculate {a} - {b}.",
             "How much is {a} - {b}?"],
       "*": ["What is {a} * {b}?", "What is {a} times {b}?", "Multiply {a} by {b}.", "Calculate {a} x {b}.", "{a} * {b} = ?"],
       "/": ["What is {a} / {b}?", "Divide {a} by {b}.", "What is {a} divided by {b}?", "Calculate {a} / {b}."]}


def steps(a, op, b, result):
    if op == "+" and a > 9 and b > 9:
        tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
        return f"{a // 10 * 10} + {b // 10 * 10} = {tens}, {a % 10} + {b % 10} = {ones}, {tens} + {ones} = {result}."
    if op == "-" and b > 9:
        middle = a - b // 10 * 10
        return f"{a} - {b // 10 * 10} = {middle}, {middle} - {b % 10} = {result}."
    if op == "*" and a > 10:
        return f"{a // 10 * 10} * {b} = {a // 10 * 10 * b}, {a % 10} * {b} = {a % 10 * b}, together {result}."
    return f"{a} {op} {b} = {result}."


def sums(rng):
    op = rng.choice("++--*/")
    if op in "+-":
        high = rng.choice([10, 20, 100])
        a, b = rng.randint(0, high), rng.randint(0, high)
        if op == "-" and b > a:
            a, b = b, a
        result = a + b if op == "+" else a - b
    else:
        a, b = rng.randint(1, rng.choice([10, 12, 20])), rng.randint(1, 10)
        result = a * b
        if op == "/":
            a, result = result, a
    form = rng.randrange(len(SAY[op]))
    answer = rng.choice([f"{a} {op} {b} = {result}", f"The answer is {result}."]) if form < 2 else f"{a} {op} {b} = {result}"
    return SAY[op][form].format(a=a, b=b), answer, steps(a, op, b, result)


def problems(rng):
    name, other = rng.sample(topics.NAMES, 2)
    thing = rng.choice(["apples", "books", "coins", "stamps", "marbles", "cookies", "pencils", "cards", "shells", "tickets"])
    a, b = rng.randint(3, 30), rng.randint(1, 12)
    case = rng.randrange(4)
    if case == 0:
        return (f"{name} has {a} {thing} and gets {b} more from {other}. How many {thing} does {name} have now?",
                f"{name} has {a + b} {thing} now.", f"{a} + {b} = {a + b}.")
    if case == 1:
        a += b
        return (f"{name} has {a} {thing} and gives {b} to {other}. How many {thing} are left?",
                f"{name} has {a - b} {thing} left.", f"{a} - {b} = {a - b}.")
    if case == 2:
        a = rng.randint(2, 10)
        return (f"There are {a} boxes with {b} {thing} each. How many {thing} are there in all?",
                f"There are {a * b} {thing} in all.", f"{a} * {b} = {a * b}.")
    a = rng.randint(2, 10)
    return (f"{name} shares {a * b} {thing} among {a} friends. How many does each friend get?", f"Each friend gets {b} {thing}.",
            f"{a * b} / {a} = {b}.")


def comparisons(rng):
    a, b = rng.sample(range(1, rng.choice([20, 100, 1000])), 2)
    word = rng.choice(["larger", "smaller", "bigger"])
    best = min(a, b) if word == "smaller" else max(a, b)
    sign = ">" if a > b else "<"
    return f"Which number is {word}, {a} or {b}?", f"{best} is {word}.", f"{a} {sign} {b}, so {best} is {word}."


def rows(rng):
    case = rng.randrange(6)
    if case == 0:
        start, step = rng.randint(0, 20), rng.randint(1, 10)
        shown = [start + step * i for i in range(4)]
        rest = [start + step * i for i in range(4, 7)]
        return (f"Continue this sequence with three more numbers: {', '.join(map(str, shown))}", ", ".join(map(str, rest)),
                f"Each number is {step} more than the one before.")
    if case == 1:
        first = rng.randint(1, 30)
        last = first + rng.randint(3, 9)
        return (f"Count from {first} to {last}.", ", ".join(map(str, range(first, last + 1))), f"I start at {first} and stop at {last}.")
    if case == 2:
        a = rng.randint(1, 100)
        kind = "even" if a % 2 == 0 else "odd"
        return f"Is {a} even or odd?", f"{a} is {kind}.", f"The last digit of {a} is {a % 10}, so it is {kind}."
    values = rng.sample(range(1, 60), rng.randint(3, 6))
    shown = ", ".join(map(str, values))
    if case == 3:
        down = rng.random() < 0.3
        order = sorted(values, reverse=down)
        way = "from largest to smallest" if down else "from smallest to largest"
        return f"Sort these numbers {way}: {shown}", ", ".join(map(str, order)), f"I put them in order {way}."
    if case == 4:
        word = rng.choice(["largest", "smallest"])
        best = max(values) if word == "largest" else min(values)
        return f"What is the {word} of these numbers: {shown}?", f"The {word} number is {best}.", f"Among {shown} the {word} is {best}."
    return f"How many numbers are in this list: {shown}?", f"There are {len(values)} numbers in the list.", f"I count {len(values)}."


def make(rng):
    question, answer, thought = rng.choices([sums, problems, comparisons, rows], [40, 25, 10, 25])[0](rng)
    return exchange("arithmetic", question, answer, thought if rng.random() < 0.4 else None)
