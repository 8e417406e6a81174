//! All that the model knows: the first lines of *Pride and Prejudice* (Jane Austen, 1813).

/// The text.
pub(crate) const TEXT: &str = "\
It is a truth universally acknowledged, that a single man in possession of a good fortune must be \
in want of a wife. However little known the feelings or views of such a man may be on his first \
entering a neighbourhood, this truth is so well fixed in the minds of the surrounding families, \
that he is considered as the rightful property of some one or other of their daughters. \
\"My dear Mr. Bennet,\" said his lady to him one day, \"have you heard that Netherfield Park is let \
at last?\" Mr. Bennet replied that he had not. \"But it is,\" returned she; \"for Mrs. Long has just \
been here, and she told me all about it.\" Mr. Bennet made no answer. \"Do not you want to know who \
has taken it?\" cried his wife impatiently. \"You want to tell me, and I have no objection to \
hearing it.\" This was invitation enough. \"What is his name?\" \"Bingley.\" \"Is he married or \
single?\" \"Oh! single, my dear, to be sure! A single man of large fortune; four or five thousand a \
year. What a fine thing for our girls!\" \"How so? how can it affect them?\" \
";
