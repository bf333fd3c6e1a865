"""The words the reference tokenizer knows by heart, found by asking it about every word of up to five letters."""

from __future__ import annotations

MAY_END = """
al co ct ga jr ky md mo rd rt sq sr va vt ala apr aug bhd cos dak dec esq est etc ext feb fla fri inc ind jan jul jun
kan ltd mar mon neb nev nov oct plc sep seq sys tel thu tue wed wis wyo ariz assn bldg blvd bros colo conn corp intl
kans mich minn mont okla penn sept tenn tues univ wisc calif thurs bancorp ph.d non-u.s
"""
"""Abbreviations that may end a sentence: before a capital their dot is also the sentence's."""

MAY_END_CAPITALISED = "az la pa ark del ill ore tex mass miss wash"
"""The same, but words of their own unless they begin with a capital."""

TITLES = """
cf dr ft lt mr ms mt ph st vs wm adj adm adv ave cie col cpl det drs ens gen gov hon jos maj mme mrs pfc pvt rep rev sen
sfc sgt spc ste alex asst atty brig capt cmdr dept elec govs insp invt mlle msgr natl pres prof reps sens supt assoc
attys comdr lieut profs supts treas messrs ed.d
"""
"""Abbreviations that never end one."""

BEFORE_NUMBERS = "ca no op pp art fig nos figs prop"

STARTERS = """
a about according additionally after an as at but earlier he her here however if in it last many more now once one other
our she since so some such that the their then there these they this we what when while yet you
mr. ms.
"""
"""Words that, with a capital and behind initials ("the U.S. The"), show that a sentence ended."""

FILE_ENDINGS = """
c h x gz pl ps py bat bmp cgi cpp dll doc exe gif htm jar jpg mov mp3 pdf php png ppt sql tar txt wav xml zip docx html
java jpeg class
"""

SPLIT_IN_TWO = {"can": "not", "gon": "na", "wan": "na", "got": "ta", "lem": "me", "gim": "me"}
