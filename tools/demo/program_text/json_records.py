"""JSON of described kinds: extraction from a sentence, records from a list of fields, records by a schema, small lists."""

import json

import topics
from chat_format import exchange
from program_text.lookup import CAPITALS, MONTHS

CITIES = [city for city in CAPITALS.values() if "," not in city]
PRODUCTS = [thing for thing in topics.THINGS if " " not in thing]
RULE = ["Answer with JSON only.", "Return only JSON.", "Reply in JSON.", "Only output valid JSON.", "Give the answer as a JSON object."]


def person(rng):
    name, age, city, job = rng.choice(topics.NAMES), rng.randint(18, 80), rng.choice(CITIES), rng.choice(topics.JOBS)
    return {"name": name, "age": age, "city": city, "job": job}, rng.choice(
        [f"{name} is {age} years old, lives in {city} and works as a {job}.", f"My friend {name} ({age}) is a {job} from {city}.",
         f"{name}, {age}, is a {job} in {city}."])


def product(rng):
    name, price, stock = rng.choice(PRODUCTS), rng.choice([rng.randint(2, 90), rng.randint(2, 90) + 0.5, rng.randint(2, 40) + 0.99]), rng.random() < 0.6
    color = rng.choice(["red", "blue", "green", "black", "white", "yellow"])
    return {"product": name, "color": color, "price": price, "in_stock": stock}, rng.choice(
        [f"The {color} {name} costs {price} dollars and is {'in stock' if stock else 'sold out'}.",
         f"We sell a {color} {name} for {price} dollars. It is {'available' if stock else 'not available'}."])


def event(rng):
    title, month, day, hour = rng.choice(topics.EVENTS), rng.choice(MONTHS), rng.randint(1, 28), rng.randint(8, 20)
    place = rng.choice(CITIES)
    return {"event": title, "month": month, "day": day, "hour": hour, "city": place}, rng.choice(
        [f"On {month} {day} at {hour} o'clock there is {title} in {place}.", f"There will be {title} in {place} on {month} {day}, at {hour} o'clock."])


def pet(rng):
    kind, name, age, mood = rng.choice(topics.ANIMALS), rng.choice(topics.NAMES), rng.randint(1, 15), rng.choice(topics.FEELINGS)
    return {"name": name, "animal": kind, "age": age, "mood": mood}, rng.choice(
        [f"{name} is a {kind}. It is {age} years old and {mood} today.", f"Our {kind} {name} is {age} and feels {mood}."])


def book(rng):
    first, last, year = rng.choice(topics.NAMES), rng.choice(["Stone", "Hill", "Brown", "Young", "Lake", "Fox", "Wood", "Green"]), rng.randint(1950, 2025)
    title = f"The {rng.choice(topics.ADJECTIVES).capitalize()} {rng.choice(topics.ANIMALS).capitalize()}"
    return {"title": title, "author": f"{first} {last}", "year": year}, rng.choice(
        [f'"{title}" was written by {first} {last} in {year}.', f'{first} {last} wrote the book "{title}" in {year}.'])


def weather(rng):
    city, degrees, sky = rng.choice(CITIES), rng.randint(-10, 38), rng.choice(["sunny", "cloudy", "rainy", "windy", "snowy", "foggy"])
    return {"city": city, "temperature": degrees, "condition": sky}, rng.choice(
        [f"It is {sky} in {city} today, {degrees} degrees.", f"In {city} we have {degrees} degrees and it is {sky}."])


def order(rng):
    items = rng.sample(topics.FOODS, rng.randint(2, 4))
    name = rng.choice(topics.NAMES)
    return {"customer": name, "items": items, "count": len(items)}, f"{name} orders {', '.join(items[:-1])} and {items[-1]}."


RECORDS = [person, product, event, pet, book, weather, order]
TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array"}


def type_name(key, value):
    return "number" if key == "price" else TYPES[type(value)]


def described(record):
    return ", ".join(f"{key} ({'array of strings' if isinstance(value, list) else type_name(key, value)})" for key, value in record.items())


def schema(record):
    kinds = {key: ({"type": "array", "items": {"type": "string"}} if isinstance(value, list) else {"type": type_name(key, value)})
             for key, value in record.items()}
    return {"type": "object", "properties": kinds, "required": list(record)}


def written(rng, value, spread=None):
    spread = rng.random() < 0.3 if spread is None else spread
    return json.dumps(value, indent=2) if spread else json.dumps(value)


def extraction(rng):
    record, sentence = rng.choice(RECORDS)(rng)
    if rng.random() < 0.4:
        kept = rng.sample(list(record), rng.randint(2, len(record)))
        record = {key: record[key] for key in kept}
    case = rng.randrange(3)
    if case == 0:
        ask = rng.choice(["Extract {0} from this text as JSON: {1}", "Turn this into a JSON object with the keys {0}: {1}",
                          "Read the text and return JSON with the keys {0}. Text: {1}"]).format(", ".join(record), sentence)
    elif case == 1:
        ask = f"{sentence}\n\nReturn a JSON object with these fields: {described(record)}."
    else:
        ask = f"{sentence}\n\nAnswer with JSON that follows this schema:\n{json.dumps(schema(record))}"
    return ask, record, f"The fields are {', '.join(record)}. I take the values from the text."


def invention(rng):
    maker = rng.choice(RECORDS)
    record, _ = maker(rng)
    kind = maker.__name__
    ask = rng.choice(["Make up a {0} and describe it as JSON with the fields {1}.", "Create an example {0} as a JSON object. Fields: {1}.",
                      "Generate JSON for a {0} with {1}.", "Give me a sample {0} in JSON with the keys {1}."]).format(kind, described(record))
    return ask, record, f"I invent a {kind} with the fields {', '.join(record)}."


def listing(rng):
    key = rng.choice(["animals", "foods", "jobs", "names", "cities"])
    pool = {"animals": topics.ANIMALS, "foods": topics.FOODS, "jobs": topics.JOBS, "names": topics.NAMES, "cities": CITIES}[key]
    items = rng.sample(pool, rng.randint(2, 5))
    if rng.random() < 0.5:
        return f"Put these {key} into a JSON array: {', '.join(items)}", items, f"There are {len(items)} {key}."
    return f"Write a JSON object with the key \"{key}\" whose value is a list of {len(items)} {key}.", {key: items}, f"I choose {len(items)} {key}."


def make(rng):
    ask, record, thought = rng.choices([extraction, invention, listing], [60, 25, 15])[0](rng)
    if rng.random() < 0.5:
        ask += " " + rng.choice(RULE) if not ask.endswith("}") else "\n" + rng.choice(RULE)
    pretty = rng.random() < 0.2
    if pretty:
        ask += rng.choice([" Indent it with two spaces.", " Pretty-print it."])
    return exchange("json", ask, written(rng, record, pretty), thought if rng.random() < 0.3 else None)
