"""Segments, padding, and the positions that predict."""

from embrew.text.tokens import Row, Segment, Tokens

P, X, M, S, Y = (int(Segment[name]) for name in ("PROMPT", "TEXT", "MEMORY", "SOFT", "TARGET"))


def test_pad_is_on_the_right_and_known_by_segment_alone():
    tokens = Tokens.pad([Row([5, 0, 7], [P, X, X]), Row([9], [X])])
    assert tokens.input_ids.tolist() == [[5, 0, 7], [9, 0, 0]]
    assert tokens.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]], "id 0 inside a text is a token like any other"


def test_predicting_is_one_to_the_left_of_the_target():
    tokens = Tokens.pad([Row([1, 2, 3, 4, 5], [P, S, S, Y, Y]), Row([1, 2, 4], [P, S, Y])])
    assert tokens.predicting(Segment.TARGET).tolist() == [
        [False, False, True, True, False],
        [False, True] + [False] * 3,
    ]
    with_last = tokens.predicting(Segment.TARGET, include_last=True)
    assert with_last.sum(-1).tolist() == [3, 2], "L + 1 rows for L target tokens"
    assert with_last[0, 4] and with_last[1, 2]
