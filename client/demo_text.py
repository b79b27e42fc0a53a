"""The demo's prompt: a report in plain prose, written for this project."""

from typing import Final

__all__ = ["ENDING", "TEXT"]

ENDING: Final = "\n\nLetter of the harbour master to the ferry company:\n\nDear Sir,"

TEXT: Final = """\
Report of the harbour office on the winter storm and on what should be repaired first

The wind turned to the north-west a little after midnight on the ninth of January, and by two in
the morning the gauge on the outer mole read eleven feet above the mark that the harbour master
calls ordinary. Nobody was at sea. The last of the crab boats had come in before dusk, because the
barometer in the pilot house had been falling since noon, and because old Merrin, who has fished
this coast for forty years, had refused to go out and had said so loudly at the fuel pump. When a
man like that stays ashore the others tend to remember something they have to do at home.

The first damage was heard before it was seen. The watchman in the signal hut reported a sound like
a cart being emptied of stones, repeated every few seconds, and rang the office at twenty past two.
What he heard was the sea taking the rubble from behind the east wall, where the contractor had
left the fill unpaved in the autumn. The wall itself is sound granite and did not move, but a wall
with nothing behind it is only a row of blocks, and the engineer expects that another night of the
same kind would bring down between thirty and fifty feet of it. She has asked that carts be kept
away from the edge until the fill is replaced.

At three o'clock the power failed in the lower town. The cause was simple: the transformer by the
ice house stands in a pit, the pit drains into the harbour, and that night the harbour drained into
the pit. The pumps of the fish market stopped at once. The cold store held its temperature until
the following evening, thanks to the care with which its doors were kept shut, and no more than two
hundred kilograms of mackerel were lost. The school, which is on the same line, was without heating
for three days. The teachers used the time to move the library upstairs, a thing that had been
discussed for years and that took, in the end, one morning and forty children.

The lifeboat was not called. Its crew gathered anyway, as it always does, and spent the night
carrying sandbags to the houses on Rope Lane, whose cellars are the lowest in the town. Nine of
these cellars took water, against twenty-three in the storm of six years ago. The difference is the
new flap valve at the end of the lane, which cost less than a single one of the cellars and which
was nearly struck from the budget twice. The office would like to record this, not to be proved
right, but because small things of this kind are easily forgotten when large ones are discussed.

Of the large ones there are three. The first is the east wall and the fill behind it. The second is
the leading light on the inner pier, which went out at four in the morning and stayed dark until
the sixteenth; its cable lies in a duct that is broken in at least two places, and the present
repair is a length of wire fixed along the railing. The third is the dredged channel. Soundings
taken on the twelfth and again on the nineteenth show that a bar has formed across the entrance,
some sixty feet long, with no more than seven feet over it at low water. The ferry draws six and a
half. It has continued to run, on the tide and slowly, but its master has written to say that he
will not take passengers across that bar in any swell, and the office can only agree with him.

It may help to say what each of these would cost, how long each would take, and what depends on it.
The fill behind the wall needs about four hundred tons of stone, which the quarry at Sallow Hill can
deliver in two weeks if the road is dry, and paving, which can wait until spring. The stone comes to
nineteen thousand, the paving to a further eight. Until the fill is in place the crane cannot stand
on the east quay, and without the crane neither the dredger's pipes nor the new cable drum can be
brought ashore. The light needs a new duct for its whole length and a proper cable; the work is a
week for four men, and the price, with the drum, is eleven thousand. The channel is a matter for the
dredger, which is at present in the next county and could be here in the middle of February. It is
hired by the day, and the engineer believes that nine days would be enough, at a little over three
thousand a day, as long as its pipes can be landed on the quay and not floated in from the beach.

The committee will see that these three are tied together. If the dredger were to come first, as the
ferry company has asked, it would lie idle, at full hire, until the quay could carry the crane. If
the light were to come first, its cable would have to be carried by hand from the road, which can be
done, and was done in the time of the present harbour master's grandfather, but which would take
twelve men where four would do. The order that costs least is therefore the wall, then the light
while the dredger is on its way, and then the channel. In this order the whole of the work could be
finished before the end of March, when the first of the yachts usually arrive and when the ferry
goes over to its summer times.

There was some discussion in the office about whether the light ought not to precede everything, on
the ground that a dark pier may cost lives and a shallow channel only costs money. The question was
put to the pilots. Their answer was that they do not steer by the inner light in bad weather at all,
since by the time it can be seen a vessel is either in the channel or on the rocks, and that the
wire along the railing, ugly as it is, has kept the lamp burning through two gales since. They would
rather have the depth. They added that they would be glad of a second lamp on the east wall, once
there is a wall to put it on, and the engineer has promised to leave a socket for it in the paving.

Two smaller matters remain. The tide gauge on the outer mole survived, but the hut around it did
not, and its keeper now reads it from a boat, which is no task for February. A hut of the same
pattern can be had for nine hundred. And the watchman has asked for a telephone that does not depend
on the line through the ice house. On the night of the storm he was able to ring the office once,
at twenty past two, and then not again until the next afternoon; he spent the hours between walking
from the hut to the town and back with his messages, a mile each way, against the wind. He has not
complained. The office thinks that he should have his telephone, and that it should be paid for out
of this year's money and not out of next year's.

The harbour master wishes to thank the crews, the teachers, the baker who opened at four, and the
ferry company, which sent its own carpenter for a week without being asked. He notes that nobody was
hurt. He notes as well that this was not the worst storm of his time, only the worst that found the
harbour with work half done, and that the fill behind the east wall would have been paved in October
had the stone not been lent to the road. He asks the committee to keep this in mind when the road
asks again.
"""
