"""Agents of other processes: messages (wire), the lab's side (service, session), theirs (the rest).

Nothing is imported here, for a client must start without torch.
"""
