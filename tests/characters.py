"""Any character that UTF-8 can write, as a strategy; hypothesis takes seconds to make its own table of all of them."""

from hypothesis import strategies as st

CHARACTERS = (
    st.integers(0, 0x7F) | st.integers(0x80, 0x2FFF) | st.integers(0x3000, 0xD7FF) | st.integers(0xE000, 0x10FFFF)
).map(chr)
