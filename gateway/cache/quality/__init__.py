"""Are semantic hits right? Answers are compared, wrong hits leave, rules over budget go off."""
