"""Countries with what comes from them, states, cities: names that are known without a capital too.

Between semicolons stand the names of one place; the first is its key. Several words are joined with
a hyphen.
"""

from typing import Final

COUNTRIES: Final = """
usa united-states united-states-of-america america american americans u.s u.s.a us-citizen; uk
united-kingdom britain british great-britain u.k briton britons; england; scotland scottish scots;
wales welsh; ireland irish; france french frenchman; germany german germans deutschland; spain
spanish spaniard spaniards; italy italian italians; portugal portuguese; netherlands dutch
holland; belgium belgian; switzerland swiss; austria austrian; poland polish; czechia czech
czech-republic; hungary hungarian; romania romanian; bulgaria bulgarian; greece greek greeks;
turkey turkish turks; russia russian russians; ukraine ukrainian; belarus belarusian; sweden
swedish; norway norwegian; denmark danish; finland finnish; iceland icelandic; estonia estonian;
latvia latvian; lithuania lithuanian; serbia serbian; croatia croatian; slovenia slovenian;
slovakia slovak; bosnia bosnian; albania albanian; malta maltese; cyprus cypriot; china chinese
prc; japan japanese; korea korean; south-korea south-korean; north-korea north-korean; india
indian indians; pakistan pakistani; bangladesh bangladeshi; nepal nepali nepalese; sri-lanka;
thailand thai; vietnam vietnamese; indonesia indonesian; malaysia malaysian; singapore
singaporean; philippines filipino philippine; taiwan taiwanese; mongolia mongolian; iran iranian
persian; iraq iraqi; israel israeli; palestine palestinian; syria syrian; lebanon lebanese;
saudi-arabia saudi; yemen yemeni; uae united-arab-emirates emirati; qatar qatari; kuwait kuwaiti;
jordan jordanian; egypt egyptian; morocco moroccan; algeria algerian; tunisia tunisian; libya
libyan; sudan sudanese; ethiopia ethiopian; kenya kenyan; nigeria nigerian; ghana ghanaian;
south-africa south-african; zimbabwe zimbabwean; uganda ugandan; tanzania tanzanian; somalia
somali; congo congolese; angola angolan; senegal senegalese; cameroon; rwanda rwandan; canada
canadian canadians; mexico mexican mexicans; cuba cuban; jamaica jamaican; haiti haitian; brazil
brazilian brazilians; argentina argentine argentinian; chile chilean; peru peruvian; colombia
colombian; venezuela venezuelan; ecuador ecuadorian; bolivia bolivian; uruguay; paraguay;
guatemala; honduras; costa-rica costa-rican; panama panamanian; puerto-rico puerto-rican;
dominican-republic dominican; australia australian australians aussie; new-zealand kiwi
new-zealander; fiji fijian; afghanistan afghan; kazakhstan kazakh; uzbekistan uzbek; armenia
armenian; azerbaijan azerbaijani; georgia georgian; myanmar burma burmese; cambodia cambodian;
laos; hong-kong; tibet tibetan; eu european-union europe european europeans; english; arabic;
hebrew; hindi; urdu; bengali; latin; mandarin; cantonese; tamil; swahili; sanskrit; esperanto;
catalan; basque; gaelic; yiddish; punjabi; farsi
"""

PLACES: Final = """
alabama; alaska; arizona; arkansas; california californian; colorado; connecticut; delaware;
florida; hawaii hawaiian; idaho; illinois; indiana; iowa; kansas; kentucky; louisiana; maine;
maryland; massachusetts; michigan; minnesota; mississippi; missouri; montana; nebraska; nevada;
new-hampshire; new-jersey nj; new-mexico; north-carolina; north-dakota; ohio; oklahoma; oregon;
pennsylvania; rhode-island; south-carolina; south-dakota; tennessee; texas texan; utah; vermont;
virginia; west-virginia; wisconsin; wyoming; ontario; quebec; british-columbia; alberta;
new-south-wales; queensland; bavaria; catalonia; brittany; normandy; tuscany; sicily; siberia;
scandinavia; balkans; london londoner; paris parisian; berlin; munich; hamburg; frankfurt;
cologne; vienna; zurich; geneva; madrid; barcelona; seville; lisbon; porto; rome roman; milan;
venice; florence; naples; athens; istanbul; ankara; moscow; saint-petersburg st-petersburg; kyiv
kiev; warsaw; krakow; prague; budapest; bucharest; sofia; belgrade; zagreb; stockholm; oslo;
copenhagen; helsinki; amsterdam; rotterdam; brussels; antwerp; dublin; edinburgh; glasgow;
manchester; liverpool; birmingham; leeds; bristol; oxford; cambridge; new-york nyc new-york-city
ny; los-angeles la; chicago; houston; phoenix; philadelphia philly; san-antonio; san-diego;
dallas; san-jose; austin; san-francisco sf; seattle; denver; boston; detroit; nashville; memphis;
portland; las-vegas vegas; baltimore; milwaukee; atlanta; miami; orlando; tampa; minneapolis;
new-orleans; cleveland; pittsburgh; cincinnati; washington washington-dc dc; brooklyn; manhattan;
hollywood; toronto; montreal; vancouver; ottawa; calgary; mexico-city; havana; bogota; lima;
santiago; buenos-aires; rio-de-janeiro rio; sao-paulo; caracas; tokyo; osaka; kyoto; beijing
peking; shanghai; guangzhou; shenzhen; seoul; busan; taipei; bangkok; hanoi; manila; jakarta;
bali; kuala-lumpur; mumbai bombay; delhi new-delhi; bangalore bengaluru; kolkata calcutta;
chennai; hyderabad; karachi; lahore; islamabad; dhaka; kabul; tehran; baghdad; damascus; beirut;
jerusalem; tel-aviv; riyadh; dubai; abu-dhabi; doha; cairo; alexandria; casablanca; marrakech;
tunis; lagos; nairobi; johannesburg; cape-town; addis-ababa; sydney; melbourne; brisbane; perth;
auckland; wellington; everest; kilimanjaro; amazon-river; nile; danube; rhine; thames;
mediterranean; baltic; caribbean; alps; andes; himalayas; sahara; pacific; atlantic; arctic;
antarctic
"""
