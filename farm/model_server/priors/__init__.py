"""The two priors of the language model: n-grams of the corpus, and the form of a reply.

This room decides which texts and which tool calls are likely. Enter at ``reply_prior.ReplyPrior`` and
``ngrams.NGrams``; ``tool_grammar`` is the grammar of a call to the tools that a prompt offers. The page is
farm/docs/architecture/model-server.md.
"""
