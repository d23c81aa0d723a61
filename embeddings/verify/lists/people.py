"""First names that are hardly ever plain words, so that they are known without a capital too."""

from typing import Final

from embeddings.verify.lists import words

FEMALE: Final = words(
    """
    mary patricia jennifer linda elizabeth barbara susan jessica sarah karen nancy lisa betty
    margaret sandra ashley kimberly emily donna michelle dorothy carol amanda melissa deborah
    stephanie rebecca sharon laura cynthia kathleen amy angela shirley anna ruth brenda pamela
    nicole katherine samantha christine catherine virginia debra rachel janet emma carolyn maria
    heather diane julie joyce evelyn joan victoria kelly christina lauren frances martha judith
    cheryl megan andrea olivia ann alice jean doris jacqueline kathryn hannah julia gloria
    teresa sara janice marie abigail sophia isabella mia charlotte amelia zoe chloe nora ella
    ellie leah claire jane lucy kate katie molly maya aisha fatima priya mei yuki ingrid astrid
    greta elena natasha olga svetlana carmen lucia sofia paula monica sonia tina tanya wendy
    yvonne valerie vanessa veronica tracy tara sylvia sophie sheila sally rosa rita renee regina
    rachael phyllis peggy patty nina nadia mindy marilyn maggie lydia lori louise lorraine lois
    loretta leslie kristen kristin kim kerry kendra kayla josephine jill jenny jenna irene helen
    gina erin erica erika ellen elaine eileen edith diana denise debbie courtney connie colleen
    clara cindy carla bonnie beverly beth bertha becky audrey anne annie anita allison alicia
    agnes
    """
)

MALE: Final = words(
    """
    james robert john michael david william richard joseph thomas christopher charles daniel
    matthew anthony donald steven andrew paul joshua kenneth kevin brian timothy ronald george
    jason edward jeffrey ryan jacob gary nicholas eric jonathan stephen larry justin scott
    brandon benjamin samuel gregory alexander patrick dennis jerry tyler aaron jose adam nathan
    henry zachary douglas peter kyle noah ethan jeremy walter keith austin roger terry sean
    gerald carl harold dylan arthur lawrence jesse bryan billy bruce gabriel joe logan alan juan
    albert willie elijah wayne randy vincent roy ralph bobby russell bradley philip eugene liam
    lucas oliver leo oscar theo felix hugo simon martin ben tom tim jim bob dave steve chris dan
    matt greg jeff ken ron sam alex nick josh luke evan ian colin connor owen trevor kurt hans
    klaus jurgen karl pierre jacques luigi giovanni mario antonio carlos luis miguel pedro pablo
    diego javier fernando ahmed ali mohammed muhammad omar hassan ibrahim yusuf raj arjun rahul
    amit wei hiroshi kenji ivan boris dmitri vladimir sergei igor mikhail travis todd ted stuart
    stanley spencer shawn shane seth rodney rick ricardo raymond phil pete patrick norman neil
    nathaniel mitchell micah melvin mathew marvin marcus louis lewis leonard jimmy jeremiah
    jerome joel johnny jonah isaac herbert harry harvey gordon glenn geoffrey fred frederick
    francis ernest elliot edwin dwight dustin derek darren darryl cody clifford clarence cameron
    calvin byron brett brad blake barry arnold andre alvin alfred
    """
)
