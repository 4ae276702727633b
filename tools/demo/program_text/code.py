"""Small functions in Python, JavaScript and C with their explanations: tasks x languages x names."""

from chat_format import exchange

# task -> (description, function name parts, parameter style, bodies by language). {f} function, {x} {y} parameters.
ONE = {
    "double": ("doubles a number", "return {x} * 2", "number", "It multiplies {x} by 2 and returns the result."),
    "square": ("returns the square of a number", "return {x} * {x}", "number", "It multiplies {x} by itself."),
    "cube": ("returns the cube of a number", "return {x} * {x} * {x}", "number", "It multiplies {x} three times."),
    "increment": ("adds one to a number", "return {x} + 1", "number", "It adds 1 to {x}."),
    "negate": ("returns the negative of a number", "return -{x}", "number", "It puts a minus sign in front of {x}."),
    "is even": ("checks if a number is even", "return {x} % 2 == 0", "test", "It is true when {x} divided by 2 has no rest."),
    "is odd": ("checks if a number is odd", "return {x} % 2 != 0", "test", "It is true when {x} divided by 2 has a rest."),
    "is positive": ("checks if a number is positive", "return {x} > 0", "test", "It is true when {x} is larger than 0."),
    "to fahrenheit": ("converts Celsius to Fahrenheit", "return {x} * 9 / 5 + 32", "number", "It multiplies by 9/5 and adds 32."),
    "to celsius": ("converts Fahrenheit to Celsius", "return ({x} - 32) * 5 / 9", "number", "It subtracts 32 and multiplies by 5/9."),
    "minutes to seconds": ("converts minutes to seconds", "return {x} * 60", "number", "One minute has 60 seconds."),
    "circle area": ("returns the area of a circle from its radius", "return 3.14159 * {x} * {x}", "number", "The area is pi times the radius squared."),
}
TWO = {
    "add": ("adds two numbers", "return {x} + {y}", "number", "It returns the sum of {x} and {y}."),
    "subtract": ("subtracts one number from another", "return {x} - {y}", "number", "It subtracts {y} from {x}."),
    "multiply": ("multiplies two numbers", "return {x} * {y}", "number", "It returns the product of {x} and {y}."),
    "average": ("returns the average of two numbers", "return ({x} + {y}) / 2", "number", "It adds both numbers and divides by 2."),
    "rectangle area": ("returns the area of a rectangle", "return {x} * {y}", "number", "The area is one side times the other."),
    "is divisible": ("checks if one number is divisible by another", "return {x} % {y} == 0", "test", "It is true when {x} divided by {y} has no rest."),
    "is greater": ("checks if the first number is greater than the second", "return {x} > {y}", "test", "It compares {x} with {y}."),
}
LIST = {
    "sum": ("returns the sum of a list of numbers", "total = 0", "total += {v}", "total", "It starts at 0 and adds every number."),
    "product": ("returns the product of a list of numbers", "total = 1", "total *= {v}", "total", "It starts at 1 and multiplies every number."),
    "count positive": ("counts the positive numbers in a list", "count = 0", "if {v} > 0: count += 1", "count", "It counts every number that is larger than 0."),
    "count even": ("counts the even numbers in a list", "count = 0", "if {v} % 2 == 0: count += 1", "count", "It counts every number that divides by 2."),
    "maximum": ("returns the largest number of a list", "best = {l}[0]", "if {v} > best: best = {v}", "best", "It keeps the largest number seen so far."),
    "minimum": ("returns the smallest number of a list", "best = {l}[0]", "if {v} < best: best = {v}", "best", "It keeps the smallest number seen so far."),
    "sum of squares": ("returns the sum of the squares of a list of numbers", "total = 0", "total += {v} * {v}", "total", "It adds the square of every number."),
}
STRINGS = {
    "reverse": ("reverses a string", "return {x}[::-1]", 'return {x}.split("").reverse().join("")', "It returns the letters in the opposite order."),
    "to upper": ("converts a string to upper case", "return {x}.upper()", "return {x}.toUpperCase()", "It returns the text in capital letters."),
    "to lower": ("converts a string to lower case", "return {x}.lower()", "return {x}.toLowerCase()", "It returns the text in small letters."),
    "text length": ("returns the length of a string", "return len({x})", "return {x}.length", "It counts the characters."),
    "is palindrome": ("checks if a string is a palindrome", "return {x} == {x}[::-1]", 'return {x} === {x}.split("").reverse().join("")', "A palindrome reads the same in both directions."),
    "first letter": ("returns the first letter of a string", "return {x}[0]", "return {x}[0]", "The first letter has index 0."),
    "count words": ("counts the words in a string", "return len({x}.split())", 'return {x}.split(" ").length', "It splits the text at spaces and counts the parts."),
    "greet": ("returns a greeting for a name", 'return "Hello, " + {x} + "!"', 'return "Hello, " + {x} + "!"', "It joins the greeting and the name."),
}
NUMBERS = ["x", "n", "a", "value", "number", "num"]
TEXTS = ["text", "s", "word", "string", "name"]
LISTS = ["numbers", "values", "items", "nums", "data"]
MARK = {"Python": "python", "JavaScript": "javascript", "C": "c"}


def snake(name):
    return name.replace(" ", "_")


def camel(name):
    first, *rest = name.split()
    return first + "".join(part.capitalize() for part in rest)


def simple(language, name, style, parameters, body):
    if language == "Python":
        return f"def {snake(name)}({', '.join(parameters)}):\n    {body}"
    if language == "JavaScript":
        body = body.replace("==", "===").replace("!= ", "!== ")
        return f"function {camel(name)}({', '.join(parameters)}) {{\n  {body};\n}}"
    kind = "int" if "/" not in body and "." not in body else "double"
    given = ", ".join(f"{kind} {p}" for p in parameters)
    return f"{'int' if style == 'test' else kind} {snake(name)}({given}) {{\n    {body};\n}}"


def loop(language, name, values, item, start, step, result):
    condition, _, action = step.partition(": ") if step.startswith("if") else ("", "", step)
    if language == "Python":
        inner = f"        {condition}:\n            {action}" if condition else f"        {action}"
        return f"def {snake(name)}({values}):\n    {start}\n    for {item} in {values}:\n{inner}\n    return {result}"
    test = f"if ({condition[3:]}) " if condition else ""
    if language == "JavaScript":
        test = test.replace("==", "===")
        return (f"function {camel(name)}({values}) {{\n  let {start};\n  for (const {item} of {values}) {{\n    {test}{action};\n  }}\n"
                f"  return {result};\n}}")
    place = f"{values}[i]"
    body = f"{test}{action}".replace(item + " ", place + " ").replace(item + ";", place + ";")
    body = body if not body.endswith(item) else body[:-len(item)] + place
    body = body.replace(f"({item} ", f"({place} ")
    return (f"int {snake(name)}(const int *{values}, int count_of_{values}) {{\n    int {start};\n    for (int i = 0; i < count_of_{values}; i++) {{\n"
            f"        {body};\n    }}\n    return {result};\n}}")


def function(rng):
    """-> language, description, code, explanation, parameter names."""
    case = rng.random()
    if case < 0.3:
        name, (what, body, style, why) = rng.choice(list(ONE.items()))
        x = rng.choice(NUMBERS)
        language = rng.choice(["Python", "Python", "JavaScript", "C"])
        return language, what, simple(language, name, style, [x], body.format(x=x)), why.format(x=x), [x]
    if case < 0.5:
        name, (what, body, style, why) = rng.choice(list(TWO.items()))
        x, y = rng.choice([("a", "b"), ("x", "y"), ("first", "second"), ("left", "right")])
        language = rng.choice(["Python", "Python", "JavaScript", "C"])
        return language, what, simple(language, name, style, [x, y], body.format(x=x, y=y)), why.format(x=x, y=y), [x, y]
    if case < 0.75:
        name, (what, start, step, result, why) = rng.choice(list(LIST.items()))
        values, item = rng.choice(LISTS), rng.choice(["value", "v", "number", "item"])
        language = rng.choice(["Python", "Python", "JavaScript", "C"])
        code = loop(language, name, values, item, start.format(l=values), step.format(v=item), result)
        return language, what, code, why, [values]
    name, (what, python, script, why) = rng.choice(list(STRINGS.items()))
    x = rng.choice(TEXTS)
    language = rng.choice(["Python", "Python", "JavaScript"])
    body = (python if language == "Python" else script).format(x=x)
    code = f"def {snake(name)}({x}):\n    {body}" if language == "Python" else f"function {camel(name)}({x}) {{\n  {body};\n}}"
    return language, what, code, why, [x]


def fenced(language, code):
    return f"```{MARK[language]}\n{code}\n```"


def make(rng):
    language, what, code, why, parameters = function(rng)
    thought = f"I write a {language} function that {what}." if rng.random() < 0.35 else None
    case = rng.random()
    if case < 0.6:
        ask = rng.choice(["Write a {0} function that {1}.", "Please write a function in {0} that {1}.", "I need a {0} function that {1}.",
                          "Can you write a {0} function that {1}?", "Show me a {0} function that {1}.", "{0}: write a function that {1}."])
        tail = rng.choice(["", "", " Only the code.", f" Use the parameter name {parameters[0]}." if len(parameters) == 1 else ""])
        answer = fenced(language, code) + ("" if tail == " Only the code." else f"\n\n{why}")
        return exchange("code", ask.format(language, what) + tail, answer, thought)
    if case < 0.85:
        ask = rng.choice(["What does this {0} function do?\n\n{1}", "Explain this code:\n\n{1}", "Explain this {0} function in one sentence.\n\n{1}"])
        return exchange("code", ask.format(language, fenced(language, code)), f"This function {what}. {why}",
                        "I read the code line by line." if thought else None)
    ask = rng.choice(["Which language is this?\n\n{0}", "In which programming language is this written?\n\n{0}"])
    return exchange("code", ask.format(fenced(language, code)), f"This is {language}.", f"The syntax is that of {language}." if thought else None)
