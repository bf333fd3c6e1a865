"""People as judges of two runs' captions: what they are asked, the local page, their answers, and what follows."""
