"""The word list of the demo model: plain English words in blocks: animals, food, places, things, nature, people, the
body, adjectives, verbs, all others.

WORDS holds the words that the reverse, sort and spell tasks draw from (three to seven lower-case letters); stories also
take their heroes and things from here.
"""

_BLOCKS = """
ant ape badger bat bear beaver bee beetle bird bison buffalo bull bunny calf camel cat cow crab crane cricket crow
deer dog dolphin donkey dove dragon duck eagle eel elk falcon ferret finch fish flea fly foal fox frog gecko giraffe
goat goose gopher gorilla gull hamster hare hawk hen heron hippo hornet horse hound jackal jaguar kitten koala lamb
lark leopard lion lizard llama lobster lynx magpie mole monkey moose moth mouse mule newt ostrich otter owl ox oyster
panda panther parrot peacock pelican penguin pig pigeon pony puffin puppy rabbit raccoon ram rat raven robin rooster
salmon seal shark sheep shrew shrimp skunk sloth slug snail snake sparrow spider squid stork swallow swan tadpole
tiger toad trout tuna turkey turtle viper walrus wasp weasel whale wolf worm wren yak zebra

apple apricot bacon bagel banana barley basil bean beef berry biscuit bread broth burger butter cabbage cake candy
carrot celery cereal cheese cherry chicken cider clove cocoa coconut coffee cookie corn cracker cream crumb cupcake
curry custard date dessert dinner dough egg feast fig flour fruit fudge garlic ginger grape gravy ham honey jam jelly
juice kale kiwi leek lemon lentil lettuce lime loaf lunch mango maple meal meat melon milk mint muffin mustard noodle
nut oat olive onion orange pancake papaya parsley pasta pastry pea peach peanut pear pepper pickle pie pizza plum
popcorn pork potato pretzel pudding pumpkin radish raisin rice roast salad salt sandwich sauce sausage snack soup
spice spinach steak stew sugar supper syrup taco tea toast tofu tomato treat turnip vanilla walnut water wheat yogurt

attic bakery balcony barn basket bay beach bedroom bench border bridge brook canal canyon castle cave ceiling cellar
chapel city cliff coast corner cottage country cove creek desert ditch dock door farm fence field forest fort
fountain garage garden gate glade grove gulf hall harbor harvest hill hotel house hut inn island jungle kingdom
kitchen lagoon lake lane library market marsh meadow mill mine moor museum nest oasis ocean office orchard palace
park pasture path patio pier plain plaza pond pool port prairie prison puddle ranch reef river road roof room school
sea shed shop shore square stable station stream street studio summit swamp temple tent theater tower town trail
tunnel valley village wall well window wood yard zoo

anchor apron arrow badge bag bakers ball balloon bandage banner barrel baton battery beads bed bell belt bicycle blanket
block boat bolt book boot bottle bow bowl box brace brick broom brush bucket button cable cage camera candle cane canoe
canvas cap car card carpet cart chain chair chalk chest chime clock cloth coat coin collar comb compass cord couch
cradle crate crayon crown cup curtain cushion desk dial diamond dish doll drawer dress drum easel engine fan feather
fiddle flag flask flute folder fork frame funnel glass globe glove glue goblet guitar hammer handle harp hat helmet
hinge hook horn jacket jar jewel jug kettle key kite knife knot ladder lamp lantern laptop leash lens letter lever
lid lock locket loom magnet mailbox map marble mask mast mat medal mirror mitten mop mug nail napkin needle net
notebook oar oven paddle paint pan paper parcel patch pearl pedal pen pencil penny phone piano picture pillow pin pipe
plank plate pliers plow pocket poster pot pouch pulley puppet purse puzzle quilt racket radio raft rag rake ribbon
ring robe rocket rod rope rudder rug ruler sack saddle sail sandal saw scale scarf scooter screen screw shawl shelf
shell shield ship shirt shoe shovel sickle sign skate ski skirt sled slipper soap sock sofa spade spear spoon spring
stamp stick stool stove string suit sword table tape teapot thread ticket tile tool torch towel toy train tray trumpet
trunk tub umbrella vase vest violin wagon wallet wand watch wheel whistle wig wire wool wrench yarn zipper

air ash autumn bark blaze bloom blossom bough branch breeze bubble bud bulb bush canyon clay cloud clover cobweb coral
daisy dawn day dew drizzle dusk dust earth ember fern fire flame flood flower foam fog frost glacier gold grain granite
grass gravel hail haze heat hedge ice iris island ivy leaf light lily meteor mist moon moss mountain mud night oak
pebble petal pine planet plant pollen prism rain rainbow reed rock root rose ruby sand season seed shade shadow silver
sky sleet slope smoke snow soil spark star stem stone storm summer sun sunrise sunset thistle thorn thunder tide tree
tulip twig vapor vine violet volcano wave weather weed willow wind winter world

actor artist aunt author baby baker barber boy brother butcher captain carver chef child clerk clown cook cousin cowboy
crew dancer dentist diver doctor driver drummer family farmer father fellow fiddler fisher friend gardener girl
grandma grandpa guard guest guide helper hero hunter judge juggler king kid knight lady lawyer leader maid maker
man mayor miner monk mother nanny neighbor nephew niece nurse painter parent partner pilot pirate player plumber poet
porter potter pupil queen rider rower ruler sailor scout shepherd singer sister smith soldier son student tailor
teacher tinker trainer twin uncle waiter weaver witch wizard woman worker writer

ankle arm back beak beard body bone brain breath cheek chin claw ear elbow eye face feather finger fist foot fur hair
hand head heart heel hip hoof horn jaw knee leg lip lung mane mouth muscle nail neck nose palm paw rib shoulder skin
stomach tail thumb toe tongue tooth tummy voice waist whisker wing wrist

angry awake awful bad bare basic bent big bitter black blank blind blue bold brave brief bright brisk broad brown busy
calm careful cheap cheery clean clear clever close cloudy clumsy cold common cool crisp cruel curious curly cute damp
dark deaf dear deep dim dirty double dry dull dusty eager early easy empty equal even fair famous fancy far fast fat
fierce fine firm flat fluffy foggy fond foolish free fresh frozen full funny fuzzy gentle giant glad gloomy golden good
grand grateful gray great greedy green grumpy handy happy hard harsh healthy heavy high hollow holy honest hot huge
humble hungry icy idle jolly joyful keen kind large last late lazy lean light little lively lonely long loose lost loud
lovely low loyal lucky mad magic merry messy mighty mild modern narrow nasty near neat new nice noble noisy nosy odd
old open pale patient perfect pink plain polite poor pretty prompt proud pure purple quick quiet rainy rapid rare raw
ready real red rich right ripe rosy rough round royal rude rusty sad safe salty scared secret shaky sharp shiny short
shy sick silent silky silly simple single sleepy slim slow sly small smart smooth soft solid sore sorry sour spare
special spicy square steady steep stiff still sticky strange strict strong sturdy sudden sunny super sure sweet swift
tall tame tasty tender thick thin thirsty tidy tiny tired tough tricky true ugly upset useful vast warm weak wet white
whole wicked wide wild windy wise wooden worried wrong yellow young

act add agree aim allow answer appear argue arrive ask bake bark bathe beg begin believe bend bite bless blink blow boil
borrow bounce bow brag break breathe bring build bump burn bury buy call care carry carve catch chase chat cheer chew
choose clap climb cling close collect color come cook copy cough count cover crack crash crawl creep cross crush cry
cure curl dance dare decide deliver dig dip dive divide doubt drag draw dream dress drift drink drip drive drop dry
earn eat enjoy enter escape explain explore fade fail faint fall fear feed feel fetch fight fill find finish fix flap
flash float flow fold follow forget forgive freeze frown gallop gather gaze get giggle give glide glow grab greet grin
grow growl guess hang happen hate hear heat help hide hit hold hop hope howl hug hum hunt hurry hurt imagine invent
invite join joke juggle jump keep kick kiss kneel knit knock know land laugh lead lean leap learn leave lend let lick
lie lift like listen live look lose love make march mark marry meet melt mend mix move nap need nibble nod notice obey
offer open own pack paint peel peep pick pinch plan plant play plead please point polish pour praise pray press pretend
promise protect prove pull push put quit race raise reach read repair repeat reply rescue rest return ride ring rinse
rise roar rob rock roll row rub run rush save say scare scatter scold scrub search see seek seem sell send sew shake
share shave shine shiver shout show shrink shut sigh sing sink sip sit skip slam sleep slide slip smell smile snap sneak
sneeze sniff snore solve speak spell spend spill spin splash split spread squeak squeeze stand stare start stay steal
steer step stick sting stir stop stretch study surprise sweep swim swing switch take talk tap taste teach tear tease
tell thank think throw tickle tie tiptoe toss touch trace trade travel tremble trip trust try tug tumble turn twist
untie use visit wait wake walk wander want warn wash waste wave wear weave weep weigh whisper win wink wipe wish wonder
work worry wrap write yawn yell

about above across after again all almost alone along already also always among and any anyone apart around away before
behind below beneath beside between beyond both but center chance change cheer choice circle club cost couple course
crowd danger deal depth dot down dozen during each edge effort eight either eleven else end enough event ever every
fact fault favor fifth first five for forever four from fun future game gift group growth half hello help here hour
hundred idea inch inside instead into item job joke journey joy just later law less lesson letter level life line list
luck lullaby many math maybe melody mercy middle mile minute mistake moment monday money month more morning most much
music myself name nation nature never news next nine noise none noon nothing now number once one only order other
outside over pace page pain pair part party past peace people percent piece place please plenty poem point power price
prize problem proof proverb quarter question quite race reason recipe record rest reward rhyme rhythm riddle role row
rule safety same score second secret sense seven shape side sight silence since six size skill some someone song soon
sound space speed spell sport spot state step story style success such surface system talent task team temper ten test
than that theirs them then there these thing third this those thought three through time title today together tonight
topic total toward travel trick trouble truth turn twelve twenty two type under unit until upon useful value very
victory view visit week weekend weight what when where which while who why width wisdom with without word worth year yes
yet zero
"""

_LISTS = [block.split() for block in _BLOCKS.split("\n\n")]
ANIMAL_WORDS, FOOD_WORDS, PLACE_WORDS, THING_WORDS, NATURE_WORDS, PEOPLE_WORDS = _LISTS[:6]
WORDS = sorted({w for w in _BLOCKS.split() if 3 <= len(w) <= 7 and w.isalpha()})
