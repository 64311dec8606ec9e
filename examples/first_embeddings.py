# %% [markdown]
# # First embeddings
#
# Open an encoder, compare texts, search. `nano` is a small language model that ships with embrew, so this runs
# offline in seconds. It has not been trained as an encoder: it finds texts with similar words. For real use, open
# a folder that `embrew train` has written, by the same call.

# %%
from embrew import Document, Encoder, SearchIndex

encoder = Encoder.from_pretrained("nano", pooling="mean", attention="bidirectional")

# %% [markdown]
# `encode` returns one vector of length 1 per text. `similarity` returns the cosine of each pair of vectors.

# %%
vectors = encoder.encode(["The dog sleeps.", "The dog is sleeping.", "Prices rose by two per cent."])
print(f"{vectors.shape[0]} vectors of {vectors.shape[1]} dimensions")
print(encoder.similarity(vectors, vectors))

# %% [markdown]
# Search has two sides, queries and documents. `SearchIndex` calls `encode_document` and `encode_query`, so that
# each side has its own prompt and limit of tokens, if the encoder was trained with them.

# %%
headlines = [
    "The river rose after three days of heavy rain.",
    "The parliament elected a new prime minister.",
    "The bakery sells fresh bread every morning.",
    "A fire destroyed the old theatre in the city centre.",
    "The team won the final by two goals.",
    "Snow closed the mountain road for a week.",
    "The museum opened an exhibition of modern art.",
    "Workers at the car factory went on strike.",
]
questions = [
    "Rain made the water of the river rise.",
    "A new head of government was chosen.",
    "Where to buy bread early in the day.",
    "A theatre burned down.",
    "The players won the last match.",
    "A road in the mountains was closed by snow.",
    "An exhibition of paintings opened in a museum.",
    "Employees of a factory stopped their work.",
]
SearchIndex.build(encoder, [Document(str(i), text) for i, text in enumerate(headlines)]).save("index")

# %% [markdown]
# A saved index opens only with the encoder that made it; another one is refused.

# %%
index = SearchIndex.load("index", encoder)
nearest = [hits[0] for hits in index.search(questions, top_k=1)]
for question, hit in zip(questions, nearest, strict=True):
    print(f"{hit.score:.2f}  {question}  ->  {hit.document.text}")
found = sum(hit.document.id == str(i) for i, hit in enumerate(nearest))
print(f"found first: {found} of {len(questions)}")
