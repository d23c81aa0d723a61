"""Companies, products, organisations and acronyms with their long forms; written as in places.py.

A brand that is also a plain word (apple, amazon, target) counts as a name only where it is
capitalised inside a sentence.
"""

from typing import Final

BRANDS: Final = """
google; microsoft; facebook; netflix; youtube; twitter; instagram insta ig; whatsapp; linkedin;
tiktok; snapchat; reddit; wikipedia; ebay; paypal; airbnb; uber; lyft; spotify; samsung; sony;
nokia; huawei; xiaomi; oneplus; motorola; lenovo; toshiba; nvidia; intel; amd; ibm; cisco; adobe;
salesforce; sap; tesla; toyota; honda; nissan; mazda; hyundai; kia; bmw; audi; mercedes
mercedes-benz; volkswagen vw; porsche; ferrari; lamborghini; chevrolet chevy; volvo; subaru; jeep;
renault; peugeot; fiat; skoda; boeing; airbus; lufthansa; ryanair; easyjet; qantas; walmart;
costco; ikea; starbucks; mcdonalds mcdonald's; kfc; pepsi; coca-cola coke; nestle; nike; adidas;
zara; gucci; disney; marvel; pixar; nintendo; playstation ps4 ps5; xbox; steam; minecraft;
fortnite; roblox; iphone; ipad; macbook; imac; android; alexa; siri; cortana; chatgpt gpt; openai;
anthropic; gemini; copilot; github; gitlab; bitbucket; jira; trello; asana; notion; slack; zoom;
skype; discord; dropbox; onedrive; gmail; outlook; hotmail; yahoo; chrome; firefox; safari;
photoshop; illustrator; powerpoint; wordpress; shopify; wix; squarespace; stripe; visa-card;
mastercard; amex american-express; venmo; zelle; cashapp; bitcoin btc; ethereum eth; dogecoin;
litecoin; nasa; fbi; cia; nsa; un united-nations; nato; who world-health-organization; imf;
unicef; unesco; fifa; uefa; nba; nfl; nhl; mlb; irs; nhs; bbc; cnn; hbo; espn; kubernetes k8s;
docker; terraform; ansible; jenkins; windows; macos; linux; ubuntu; debian; ios; excel; harvard;
stanford; mit; yale; princeton; toefl; ielts; sat; gre; gmat; lsat; ielts; python; java;
javascript; typescript; golang; kotlin; django; pandas; numpy; pytorch; tensorflow; mysql;
postgresql postgres; sqlite; mongodb; redis; kafka; hadoop; netflix; hulu; christianity christian
christians; islam muslim muslims islamic; judaism jewish jew jews; hinduism hindu hindus; buddhism
buddhist buddhists; sikhism sikh sikhs; catholicism catholic catholics; protestant protestants;
mormon mormons
"""

ACRONYMS: Final = """
ai=artificial-intelligence; ml=machine-learning; atm=cash-machine; cv=resume=curriculum-vitae;
ceo=chief-executive; cfo; cto; hr=human-resources; it; pc=computer; tv=television; dvd; cd; usb;
pdf; url=link; vpn; ip; dns; api; sql; css; html; xml; json; csv; http; https; ssl; tls; ssh;
cpu=processor; gpu=graphics-card; ram=memory; ssd; hdd; os=operating-system; gps; sim; pin;
id=identification; faq; dna; rna; hiv; aids; adhd; ptsd; bmi; iq; gdp; gpa; mba; phd; diy; eta;
asap; suv; ac=air-conditioning; vat; llc; ira; apr; rsvp; pto=paid-time-off; ui; ux; ide; ram;
vat; iban; bic; 2fa=two-factor; mfa; ok; sms=text; mms; gif; jpg; png; mp3; mp4; ups; ebook; ps;
bbq; tba; faq; dm; kyc; aml; poa; csr; crm; erp; hdmi; led; lcd; otp; nfc; ota; rom; gui; cli;
orm; mri; ct; ecg; ivf; uti; sti; std; cpr; hoa; rv; ev; hov; ipo; etf; roi; kpi; cod; rma; sku
"""
"""Acronyms that are common nouns: as little a name as the words they stand for."""
