"""Small facts and word knowledge as questions and answers. The tables are plain facts, written down for this project."""

from chat_format import exchange

CAPITALS = dict(pair.split(":") for pair in """France:Paris|Germany:Berlin|Italy:Rome|Spain:Madrid|Portugal:Lisbon|
Austria:Vienna|Switzerland:Bern|Belgium:Brussels|the Netherlands:Amsterdam|Denmark:Copenhagen|Sweden:Stockholm|Norway:Oslo|
Finland:Helsinki|Poland:Warsaw|Czechia:Prague|Hungary:Budapest|Greece:Athens|Turkey:Ankara|Russia:Moscow|Ukraine:Kyiv|
Ireland:Dublin|the United Kingdom:London|Iceland:Reykjavik|Japan:Tokyo|China:Beijing|India:New Delhi|South Korea:Seoul|
Thailand:Bangkok|Vietnam:Hanoi|Indonesia:Jakarta|the Philippines:Manila|Australia:Canberra|New Zealand:Wellington|Canada:Ottawa|
the United States:Washington, D.C.|Mexico:Mexico City|Brazil:Brasilia|Argentina:Buenos Aires|Chile:Santiago|Peru:Lima|
Colombia:Bogota|Cuba:Havana|Egypt:Cairo|Morocco:Rabat|Kenya:Nairobi|Nigeria:Abuja|Ghana:Accra|Ethiopia:Addis Ababa|Iran:Tehran|
Iraq:Baghdad|Israel:Jerusalem|Jordan:Amman|Nepal:Kathmandu|Mongolia:Ulaanbaatar|Bulgaria:Sofia|Romania:Bucharest|
Serbia:Belgrade|Croatia:Zagreb|Slovenia:Ljubljana|Slovakia:Bratislava|Estonia:Tallinn|Latvia:Riga|Lithuania:Vilnius""".replace("\n", "").split("|"))
OPPOSITES = dict(pair.split(":") for pair in """hot:cold big:small fast:slow happy:sad light:dark day:night up:down left:right
old:young new:old open:closed full:empty hard:soft high:low long:short rich:poor strong:weak wet:dry clean:dirty early:late
easy:difficult loud:quiet thick:thin wide:narrow deep:shallow heavy:light sweet:sour true:false first:last inside:outside
near:far start:end buy:sell push:pull win:lose come:go give:take love:hate remember:forget arrive:leave laugh:cry""".split())
PLURALS = dict(pair.split(":") for pair in """child:children mouse:mice foot:feet tooth:teeth goose:geese man:men woman:women
person:people leaf:leaves knife:knives wife:wives wolf:wolves box:boxes bus:buses city:cities baby:babies fish:fish sheep:sheep
potato:potatoes tomato:tomatoes book:books tree:trees house:houses dog:dogs cat:cats dish:dishes story:stories key:keys
shelf:shelves hero:heroes""".split())
PAST = dict(pair.split(":") for pair in """go:went see:saw eat:ate run:ran take:took give:gave write:wrote read:read sing:sang
swim:swam drink:drank buy:bought think:thought bring:brought make:made come:came know:knew fly:flew drive:drove speak:spoke
break:broke sleep:slept find:found walk:walked play:played jump:jumped help:helped begin:began grow:grew draw:drew""".split())
YOUNG = dict(pair.split(":") for pair in """dog:puppy cat:kitten cow:calf horse:foal sheep:lamb goat:kid pig:piglet lion:cub
bear:cub duck:duckling goose:gosling chicken:chick deer:fawn frog:tadpole kangaroo:joey swan:cygnet owl:owlet elephant:calf
whale:calf rabbit:kit butterfly:caterpillar""".split())
SYMBOLS = dict(pair.split(":") for pair in """hydrogen:H helium:He carbon:C nitrogen:N oxygen:O sodium:Na magnesium:Mg aluminum:Al
silicon:Si sulfur:S chlorine:Cl potassium:K calcium:Ca iron:Fe copper:Cu zinc:Zn silver:Ag tin:Sn gold:Au mercury:Hg lead:Pb
neon:Ne iodine:I nickel:Ni uranium:U""".split())
COLORS = dict(pair.split(":") for pair in """grass:green snow:white coal:black blood:red milk:white bananas:yellow oranges:orange
strawberries:red lemons:yellow carrots:orange elephants:gray frogs:green chocolate:brown leaves:green""".split()) | {"the sky": "blue", "the sun": "yellow"}
WORDS = dict(pair.split(":") for pair in """water:agua,eau,Wasser house:casa,maison,Haus dog:perro,chien,Hund cat:gato,chat,Katze
bread:pan,pain,Brot sun:sol,soleil,Sonne moon:luna,lune,Mond book:libro,livre,Buch friend:amigo,ami,Freund day:dia,jour,Tag
night:noche,nuit,Nacht milk:leche,lait,Milch tree:arbol,arbre,Baum fish:pez,poisson,Fisch bird:pajaro,oiseau,Vogel
school:escuela,ecole,Schule red:rojo,rouge,rot blue:azul,bleu,blau green:verde,vert,gruen white:blanco,blanc,weiss
black:negro,noir,schwarz one:uno,un,eins two:dos,deux,zwei three:tres,trois,drei yes:si,oui,ja no:no,non,nein
hello:hola,bonjour,hallo love:amor,amour,Liebe heart:corazon,coeur,Herz hand:mano,main,Hand door:puerta,porte,Tuer
table:mesa,table,Tisch apple:manzana,pomme,Apfel cheese:queso,fromage,Kaese mother:madre,mere,Mutter father:padre,pere,Vater
""".split())
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
LENGTHS = dict(zip(MONTHS, [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]))
UNITS = [("meters", "centimeters", 100), ("kilometers", "meters", 1000), ("hours", "minutes", 60), ("minutes", "seconds", 60),
         ("days", "hours", 24), ("weeks", "days", 7), ("kilograms", "grams", 1000), ("years", "months", 12), ("feet", "inches", 12)]


def capital(rng):
    country = rng.choice(list(CAPITALS))
    city = CAPITALS[country]
    if rng.random() < 0.25:
        return f"{city} is the capital of which country?", f"{city} is the capital of {country}.", f"The country with the capital {city} is {country}."
    form = rng.choice(["What is the capital of {0}?", "Which city is the capital of {0}?", "Name the capital of {0}.", "Tell me the capital of {0}."])
    return form.format(country), f"The capital of {country} is {city}.", f"The capital of {country} is {city}."


def word(rng):
    case = rng.randrange(6)
    if case == 0:
        a, b = rng.choice(list(OPPOSITES.items()))
        return rng.choice([f"What is the opposite of {a}?", f'What is the opposite of "{a}"?', f"Give me the opposite of {a}."]), f"The opposite of {a} is {b}.", f"{a} and {b} are opposites."
    if case == 1:
        a, b = rng.choice(list(PLURALS.items()))
        return rng.choice([f"What is the plural of {a}?", f'What is the plural of "{a}"?']), f"The plural of {a} is {b}.", f"One {a}, two {b}."
    if case == 2:
        a, b = rng.choice(list(PAST.items()))
        return f'What is the past tense of "{a}"?', f'The past tense of "{a}" is "{b}".', f"Today I {a}, yesterday I {b}."
    if case == 3:
        a, b = rng.choice(list(YOUNG.items()))
        return rng.choice([f"What is a young {a} called?", f"What do you call a baby {a}?"]), f"A young {a} is called a {b}.", f"The young of a {a} is a {b}."
    if case == 4:
        a, b = rng.choice(list(COLORS.items()))
        verb = "are" if a.endswith("s") and a not in ("grass",) else "is"
        return f"What color {verb} {a}?", f"{a[0].upper() + a[1:]} {verb} {b}.", f"The usual color is {b}."
    a = rng.choice(list(WORDS))
    at, language = rng.choice(list(enumerate(["Spanish", "French", "German"])))
    b = WORDS[a].split(",")[at]
    return rng.choice([f'How do you say "{a}" in {language}?', f'Translate "{a}" to {language}.', f"What is the {language} word for {a}?"]), \
        f'"{a}" in {language} is "{b}".', f"The {language} word for {a} is {b}."


def time(rng):
    names, unit = rng.choice([(DAYS, "day"), (MONTHS, "month")])
    at = rng.randrange(len(names))
    case = rng.randrange(5)
    if case == 0:
        return f"Which {unit} comes after {names[at]}?", f"{names[(at + 1) % len(names)]} comes after {names[at]}.", f"The {unit} after {names[at]} is {names[(at + 1) % len(names)]}."
    if case == 1:
        return f"Which {unit} comes before {names[at]}?", f"{names[at - 1]} comes before {names[at]}.", f"The {unit} before {names[at]} is {names[at - 1]}."
    if case == 2:
        month = rng.choice(MONTHS)
        return f"How many days does {month} have?", f"{month} has {LENGTHS[month]} days.", f"{month} has {LENGTHS[month]} days."
    if case == 3:
        count = rng.randint(3, len(names))
        return f"List the first {count} {unit}s of the {'week' if unit == 'day' else 'year'}.", ", ".join(names[:count]) + ".", f"I start with {names[0]}."
    big, small, factor = rng.choice(UNITS)
    count = rng.randint(2, 12)
    return rng.choice([f"How many {small} are in {count} {big}?", f"Convert {count} {big} to {small}."]), f"{count} {big} are {count * factor} {small}.", f"{count} * {factor} = {count * factor}."


def letters(rng):
    text = rng.choice(list(OPPOSITES) + list(PLURALS) + list(WORDS) + list(PAST))
    case = rng.randrange(4)
    if case == 0:
        return f'Spell the word "{text}".', "-".join(text), f"The letters are {', '.join(text)}."
    if case == 1:
        return f'What is the first letter of "{text}"?', f'The first letter of "{text}" is "{text[0]}".', f"{text} starts with {text[0]}."
    if case == 2:
        return f'How many letters does the word "{text}" have?', f'The word "{text}" has {len(text)} letters.', f"{', '.join(text)}: that is {len(text)}."
    return f'Write "{text}" in capital letters.', text.upper(), f"In capital letters it is {text.upper()}."


def symbol(rng):
    name, sign = rng.choice(list(SYMBOLS.items()))
    if rng.random() < 0.4:
        return f"Which element has the symbol {sign}?", f"{sign} is the symbol of {name}.", f"{sign} stands for {name}."
    return f"What is the chemical symbol of {name}?", f"The chemical symbol of {name} is {sign}.", f"{name} is written {sign}."


def make(rng):
    question, answer, thought = rng.choices([capital, word, time, letters, symbol], [25, 35, 20, 15, 8])[0](rng)
    return exchange("lookup", question, answer, thought if rng.random() < 0.35 else None)
