"""What the prompts are about: word lists written for this project. Short, everyday, and such that a tiny model can say
something about each."""

ANIMALS = """cat dog horse cow sheep goat pig rabbit mouse rat fox wolf bear lion tiger elephant giraffe zebra monkey panda
koala kangaroo penguin owl eagle parrot duck goose chicken turkey swan crow sparrow dolphin whale shark octopus crab salmon
frog toad snake lizard turtle crocodile bee ant butterfly spider snail squirrel hedgehog deer camel otter beaver bat seal
hamster donkey peacock flamingo cheetah leopard moose""".split()
FOODS = """bread rice pasta soup salad cheese butter yogurt honey chocolate pancakes pizza tomatoes potatoes carrots onions
apples bananas oranges grapes strawberries lemons mushrooms beans eggs noodles cookies cake tea coffee milk corn spinach
garlic peanuts oats salt sugar olives peppers pumpkin cherries pears avocado""".split()
THINGS = """bicycle|car|train|boat|airplane|bus|clock|lamp|mirror|pencil|notebook|camera|telephone|computer|keyboard|printer|
umbrella|suitcase|backpack|hammer|ladder|candle|guitar|piano|violin|drum|kite|balloon|chess board|map|compass|telescope|
microscope|thermometer|bridge|lighthouse|windmill|refrigerator|oven|washing machine|vacuum cleaner|blanket|pillow|chair|
table|window|door|key|wallet|watch|scissors|needle|bottle|teapot|shoe|coat|hat|glove|scarf|book|newspaper|battery|magnet|
engine|wheel|tent|sailboat|robot|calendar|paintbrush|rope|bell|basket""".replace("\n", "").split("|")
PLACES = """the beach|a forest|the mountains|a desert|a small village|a big city|a library|a museum|a school|a hospital|
a farm|a market|a train station|an airport|a park|a garden|an island|a river|a lake|a castle|a bakery|a restaurant|a zoo|
a theater|a bookshop|a harbor|a cave|a bridge|a playground|a kitchen|a workshop|a greenhouse|a lighthouse|an old house|
a space station|a snowy valley|a quiet street|a football field|a swimming pool|a classroom""".replace("\n", "").split("|")
JOBS = """teacher doctor nurse farmer baker cook carpenter plumber electrician pilot sailor firefighter gardener painter
musician writer scientist engineer librarian tailor fisherman journalist photographer programmer astronaut mechanic
dentist veterinarian postman shopkeeper judge actor dancer coach translator""".split()
IDEAS = """friendship|kindness|honesty|patience|courage|teamwork|curiosity|creativity|freedom|justice|trust|respect|hope|
happiness|anger|fear|sleep|exercise|healthy eating|reading|writing|music|dancing|painting|cooking|gardening|camping|
swimming|running|cycling|hiking|fishing|learning a language|saving money|recycling|saving water|time management|
public speaking|making friends|good manners|working from home|team sports|homework|volunteering|meditation|
family traditions|birthdays|holidays|travel|photography""".replace("\n", "").split("|")
SCIENCE = """gravity|electricity|magnetism|photosynthesis|the water cycle|evaporation|rain|snow|lightning|wind|volcanoes|
earthquakes|the moon|the sun|the stars|planets|Mars|black holes|the ocean|tides|clouds|rainbows|fire|ice|steam|sound|light|
shadows|colors|energy|heat|atoms|molecules|cells|bacteria|viruses|vaccines|the heart|the brain|the lungs|bones|muscles|
blood|digestion|the five senses|seeds|flowers|trees|leaves|roots|fossils|dinosaurs|evolution|food chains|habitats|
climate change|solar power|wind power|oxygen|carbon dioxide|metals|plastic|glass|friction|speed|pressure|the seasons|
day and night|deserts|rainforests|coral reefs|glaciers""".replace("\n", "").split("|")
COMPUTING = """the internet|a website|email|a password|a computer virus|a search engine|a database|a programming language|
a variable|a function|a loop|a list|an array|a string|a compiler|an operating system|a file|a folder|a backup|a bug|
debugging|version control|an algorithm|sorting|recursion|a web browser|a server|the cloud|encryption|open source software|
artificial intelligence|machine learning|a keyboard shortcut|a spreadsheet|memory|a processor|Python|JavaScript|HTML|
JSON|an API""".replace("\n", "").split("|")
NAMES = """Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Maria Noah Olivia Paul Rosa Sam Tina Victor Lily Tom
Mia Max Ella Oscar Nora Hugo Alice Peter Sara Lucas Julia Adam Eva Simon Laura Daniel Sofia Mark Hannah Omar Amina Kenji Yuki
Priya Arjun Chen Mei Carlos Lucia Ivan Olga Fatima Ali Zoe Ruth George Helen Frank""".split()
FEELINGS = """happy sad excited nervous proud tired curious lonely grateful surprised brave shy worried calm hopeful""".split()
ADJECTIVES = """small big old young brave clever lazy kind funny shy hungry lost tiny gentle curious grumpy cheerful quiet
magical lucky""".split()
EVENTS = """a birthday party|a rainy day|the first day of school|a picnic|a camping trip|a snowstorm|a wedding|a long journey|
a school play|a football match|a power cut|moving to a new house|a visit to the zoo|a lost key|a surprise gift|
a broken window|a treasure map|a new friend|a cooking contest|a train ride|a storm at sea|a summer holiday|a science fair|
a missing cat|a talent show""".replace("\n", "").split("|")
