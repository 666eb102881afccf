"""A closed loop on two processor cores: a small policy learns from scratch on tasks in real sandboxes.

language.py    tokens, grammar and chat template of the policy
network.py     the policy's network, with sampling
tasks.py       generates the task sets train and held-out
server.py      serves the policy as an OpenAI-compatible endpoint
update.py      one step of GRPO
learner.py     the loop: lease, update, serve, announce, ack
plot.py        draws reward, lag and throughput, and what a change of the rules did
brief.toml     rules that charge for turns and for violations of style

``python -m farm.examples.grpo`` runs it. The page is farm/docs/closed-loop.md.
"""
