"""Edits: a text, a function, a list or a JSON file is given, one change is asked for, the whole is returned changed. Most of
the answer is a copy of the prompt, which is what copy drafts and in-context copying live on. `texts` is filled with the
teacher's answers when they exist; until then sentences written here serve."""

import json
import re

import topics
from chat_format import exchange
from program_text import code, json_records

texts = []  # plain prose, filled by corpus.py


def prose(rng):
    if texts and rng.random() < 0.85:
        return rng.choice(texts)
    name, other = rng.sample(topics.NAMES, 2)
    return " ".join([f"{name} went to {rng.choice(topics.PLACES)} with a {rng.choice(topics.THINGS)}.",
                     f"There {other} met a {rng.choice(topics.ADJECTIVES)} {rng.choice(topics.ANIMALS)}.",
                     f"They talked about {rng.choice(topics.EVENTS)} and felt {rng.choice(topics.FEELINGS)}."][:rng.randint(2, 3)])


def words_of(text):
    return sorted({word for word in re.findall(r"[A-Za-z]{4,}", text)})


def replaced(text, old, new):
    return re.sub(rf"\b{re.escape(old)}\b", new, text)


def change_word(rng):
    text = prose(rng)
    old = rng.choice(words_of(text) or ["the"])
    new = rng.choice(topics.ANIMALS + topics.FOODS + topics.JOBS)
    if old[0].isupper():
        new = rng.choice(topics.NAMES)
    ask = rng.choice(['Replace "{0}" with "{1}" in this text and return the whole text:\n\n{2}', 'Change the word "{0}" to "{1}":\n\n{2}',
                      'In the following text, replace every "{0}" with "{1}". Return only the text.\n\n{2}'])
    return ask.format(old, new, text), replaced(text, old, new), f'I replace "{old}" with "{new}" and keep the rest.'


def add_sentence(rng):
    text = prose(rng)
    extra = f"{rng.choice(topics.NAMES)} was {rng.choice(topics.FEELINGS)}."
    if rng.random() < 0.5:
        return f"Add the sentence \"{extra}\" to the end of this text:\n\n{text}", f"{text} {extra}", "The text stays as it is, with one more sentence."
    return f"Put the sentence \"{extra}\" at the beginning of this text:\n\n{text}", f"{extra} {text}", "The new sentence comes first, then the text."


def copy_text(rng):
    text = prose(rng)
    ask = rng.choice(["Repeat this text exactly:\n\n{0}", "Copy this text:\n\n{0}", "Return the following text without any change.\n\n{0}"])
    return ask.format(text), text, "I copy the text word for word."


def change_list(rng):
    pool = rng.choice([topics.FOODS, topics.ANIMALS, topics.NAMES, topics.JOBS])
    items = rng.sample(pool, rng.randint(4, 9))
    extra = rng.choice([x for x in pool if x not in items])
    show = lambda values: "\n".join(f"- {x}" for x in values)
    case = rng.randrange(3)
    if case == 0:
        at = rng.randrange(len(items))
        return f"Remove {items[at]} from this list:\n\n{show(items)}", show(items[:at] + items[at + 1:]), f"The list without {items[at]}."
    if case == 1:
        return f"Add {extra} to the end of this list:\n\n{show(items)}", show(items + [extra]), f"The list, then {extra}."
    at = rng.randrange(len(items))
    return f"Replace {items[at]} with {extra} in this list:\n\n{show(items)}", show(items[:at] + [extra] + items[at + 1:]), f"{extra} takes the place of {items[at]}."


def change_code(rng):
    parts = [code.function(rng) for _ in range(rng.randint(1, 3))]
    language = parts[0][0]
    same = [part for part in parts if part[0] == language]
    text = "\n\n".join(part[2] for part in same)
    case = rng.randrange(3)
    if case == 0:
        old = rng.choice(same)[4][0]
        new = rng.choice([x for x in ("amount", "input_value", "source", "entry", "argument", "param") if x != old])
        ask, result = f"Rename {old} to {new} in this code and return all of it:", replaced(text, old, new)
    elif case == 1:
        found = re.search(r"(?:def|function|int|double) (\w+)\(", text)
        old = found.group(1)
        new = rng.choice(["compute", "process", "helper", "run_step", "transform", "calculate_it"])
        ask, result = f"Rename the function {old} to {new}. Return the whole code:", replaced(text, old, new)
    else:
        mark = "#" if language == "Python" else "//"
        note = rng.choice(["Helper functions.", "Written for the demo.", "Simple math.", "See the notes.", "Version 2."])
        ask, result = f"Add the comment \"{note}\" as the first line of this code:", f"{mark} {note}\n{text}"
    return f"{ask}\n\n{code.fenced(language, text)}", code.fenced(language, result), "I keep the code and make the one change."


def change_json(rng):
    count = rng.randint(1, 3)
    maker = rng.choice(json_records.RECORDS)
    records = [maker(rng)[0] for _ in range(count)]
    value = records[0] if count == 1 else records
    spread = rng.random() < 0.6
    before = json_records.written(rng, value, spread)
    target = rng.choice(records)
    key = rng.choice([k for k in target if not isinstance(target[k], list)])
    new = {bool: lambda: not target[key], int: lambda: rng.randint(1, 99), float: lambda: rng.randint(1, 99),
           str: lambda: rng.choice(topics.NAMES + json_records.CITIES)}[type(target[key])]()
    where = f' of the entry {records.index(target) + 1}' if count > 1 else ""
    ask = f"Set \"{key}\"{where} to {json.dumps(new)} in this JSON and return all of it:\n\n{before}"
    target[key] = new
    return ask, json_records.written(rng, value, spread), f'Only "{key}" changes.'


def make(rng):
    ask, answer, thought = rng.choices([change_word, add_sentence, copy_text, change_list, change_code, change_json],
                                       [25, 12, 10, 15, 22, 18])[0](rng)
    return exchange("edits", ask, answer, thought if rng.random() < 0.3 else None)
