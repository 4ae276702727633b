"""Tools: a few of many definitions in the system block, a request, the call in the template's format, the result, the answer.
Some requests need no tool."""

import json

import topics
from chat_format import assistant, user
from program_text.json_records import CITIES
from program_text.lookup import make as lookup


def definition(name, description, **properties):
    kinds = {key: ({"type": kind.split(":")[0], "description": kind.split(":")[1]} if ":" in kind else {"type": kind}) for key, kind in properties.items()}
    return {"type": "function", "function": {"name": name, "description": description,
                                             "parameters": {"type": "object", "properties": kinds, "required": list(properties)}}}


def weather(rng):
    city, degrees, sky = rng.choice(CITIES), rng.randint(-8, 35), rng.choice(["sunny", "cloudy", "rainy", "windy", "snowy"])
    return (rng.choice([f"What is the weather in {city}?", f"How is the weather in {city} today?", f"Is it warm in {city}?", f"Tell me the weather for {city}."]),
            {"city": city}, {"temperature": degrees, "condition": sky}, f"It is {sky} in {city} with {degrees} degrees.")


def clock(rng):
    city, hour, minute = rng.choice(CITIES), rng.randint(0, 23), rng.randint(0, 59)
    return (rng.choice([f"What time is it in {city}?", f"Tell me the time in {city}."]), {"city": city}, {"time": f"{hour:02d}:{minute:02d}"},
            f"It is {hour:02d}:{minute:02d} in {city}.")


def calculator(rng):
    a, b, op = rng.randint(10, 9999), rng.randint(10, 999), rng.choice("+-*")
    result = {"+": a + b, "-": a - b, "*": a * b}[op]
    return (rng.choice([f"What is {a} {op} {b}?", f"Calculate {a} {op} {b}.", f"Please compute {a} {op} {b}."]), {"expression": f"{a} {op} {b}"},
            {"result": result}, f"{a} {op} {b} = {result}")


def email(rng):
    name, subject = rng.choice(topics.NAMES), rng.choice(["the meeting", "dinner", "the report", "our trip", "the concert", "the invoice"])
    address = f"{name.lower()}@example.com"
    return (rng.choice([f"Send an email to {address} about {subject}.", f"Write to {address} about {subject}."]),
            {"to": address, "subject": subject, "body": f"Hello {name}, I am writing to you about {subject}."}, {"status": "sent"},
            f"I sent an email about {subject} to {address}.")


def reminder(rng):
    task, hour = rng.choice(["call the doctor", "water the plants", "buy milk", "pay the bill", "feed the cat", "take a break", "clean the kitchen"]), rng.randint(7, 21)
    return (rng.choice([f"Remind me to {task} at {hour}:00.", f"Set a reminder at {hour}:00: {task}."]), {"text": task, "time": f"{hour}:00"},
            {"status": "ok", "id": rng.randint(1, 99)}, f"I will remind you to {task} at {hour}:00.")


def search(rng):
    topic = rng.choice(topics.SCIENCE + topics.COMPUTING)
    count = rng.randint(2, 90)
    return (rng.choice([f"Search for {topic}.", f"Find articles about {topic}.", f"Look up {topic}."]), {"query": topic}, {"results": count},
            f"I found {count} results for {topic}.")


def translate(rng):
    word, (language, result) = rng.choice([("water", ("Spanish", "agua")), ("house", ("French", "maison")), ("book", ("German", "Buch")),
                                           ("friend", ("Spanish", "amigo")), ("sun", ("French", "soleil")), ("dog", ("German", "Hund")), ("cat", ("Spanish", "gato"))])
    return (f'Translate "{word}" into {language} with the tool.', {"text": word, "language": language}, {"translation": result}, f'"{word}" in {language} is "{result}".')


def lights(rng):
    room, on, level = rng.choice(["kitchen", "bedroom", "living room", "office", "hall"]), rng.random() < 0.6, rng.randint(1, 10) * 10
    if on:
        return (f"Set the {room} light to {level} percent.", {"room": room, "on": True, "brightness": level}, {"status": "ok"}, f"The {room} light is at {level} percent.")
    return (f"Turn off the light in the {room}.", {"room": room, "on": False, "brightness": 0}, {"status": "ok"}, f"The light in the {room} is off.")


def music(rng):
    artist, kind = rng.choice(topics.NAMES), rng.choice(["jazz", "rock", "piano", "folk", "pop", "classical"])
    return (rng.choice([f"Play some {kind} music by {artist}.", f"I want to hear {kind} by {artist}."]), {"artist": artist, "genre": kind}, {"playing": True},
            f"Now playing {kind} by {artist}.")


def stock(rng):
    name, count = rng.choice(topics.THINGS), rng.randint(0, 60)
    return (rng.choice([f"How many of the item {name} do we have?", f"Check the stock of {name}."]), {"item": name}, {"count": count}, f"We have {count} of the item {name} in stock.")


def read_file(rng):
    name = rng.choice(["notes", "todo", "readme", "report", "list", "config"]) + rng.choice([".txt", ".md", ".json"])
    line = rng.choice([f"Buy {rng.choice(topics.FOODS)}.", f"Call {rng.choice(topics.NAMES)}.", f"Meet {rng.choice(topics.NAMES)} at {rng.randint(8, 18)}:00."])
    return (rng.choice([f"Read the file {name}.", f"What is in {name}?", f"Open {name} and tell me what it says."]), {"path": name}, line, f"The file {name} says: {line}")


def route(rng):
    a, b = rng.sample(CITIES, 2)
    hours = rng.randint(1, 20)
    return (rng.choice([f"How long does it take from {a} to {b}?", f"Find a route from {a} to {b}."]), {"start": a, "end": b}, {"hours": hours},
            f"The trip from {a} to {b} takes {hours} hours.")


TOOLS = [
    (weather, definition("get_weather", "Get the current weather of a city.", city="string")),
    (clock, definition("get_time", "Get the local time of a city.", city="string:Name of the city")),
    (calculator, definition("calculate", "Evaluate an arithmetic expression.", expression="string")),
    (email, definition("send_email", "Send an email.", to="string", subject="string", body="string")),
    (reminder, definition("set_reminder", "Set a reminder.", text="string:What to do", time="string:HH:MM")),
    (search, definition("web_search", "Search the web.", query="string")),
    (translate, definition("translate", "Translate a text.", text="string", language="string")),
    (lights, definition("set_light", "Switch a light.", room="string", on="boolean", brightness="integer:0 to 100")),
    (music, definition("play_music", "Play music.", artist="string", genre="string")),
    (stock, definition("check_stock", "Number of an item in stock.", item="string:Name of the item")),
    (read_file, definition("read_file", "Read a text file.", path="string")),
    (route, definition("find_route", "Find a route between two cities.", start="string", end="string")),
]


def thought(rng, text, share):
    return text if rng.random() < share else None


def make(rng):
    chosen = rng.sample(TOOLS, rng.randint(1, 3))
    tools = [tool for _, tool in chosen]
    share = 1.0 if rng.random() < 0.4 else 0.0
    messages = [{"role": "system", "content": rng.choice(["You are a helpful assistant.", "Use the tools when they help."])}] if rng.random() < 0.3 else []
    if rng.random() < 0.12:
        other = lookup(rng)["messages"]
        return {"kind": "tools", "tools": tools, "messages": messages + [other[0], assistant(other[1]["content"], thought(rng, "No tool is needed here.", share))]}
    scene, tool = rng.choice(chosen)
    name = tool["function"]["name"]
    ask, arguments, result, answer = scene(rng)
    messages += [user(ask), assistant("", thought(rng, f"I need the tool {name}.", share), [{"name": name, "arguments": arguments}])]
    if rng.random() < 0.75:
        messages += [{"role": "tool", "content": result if isinstance(result, str) else json.dumps(result)},
                     assistant(answer, thought(rng, "The tool gave me the answer.", share))]
    return {"kind": "tools", "tools": tools, "messages": messages}
