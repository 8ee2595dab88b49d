# Exercise: blocks
class Blocks:
    """A pool of blocks with sharing and copy-on-write, as it is often written down."""

    def __init__(self, num_blocks):
        self.free = list(range(num_blocks))  # blocks that nobody holds
        self.text = {}  # block -> what is in it
        self.refs = {}  # block -> the number of tables that hold it
        self.found = {}  # key -> the block where that text can be found
        self.key = {}  # block -> the key under which it can be found
        self.table = {}  # sequence -> its blocks, in order

    def append(self, seq, text):
        """The next block of a sequence holds this text: one that is there, or a new one."""
        row = self.table.setdefault(seq, [])
        key = (*[self.text[block] for block in row], text)  # all that stands before, and this
        if key in self.found:
            block = self.found[key]
            self.refs[block] += 1
            row.append(block)
        else:
            block = self.free.pop()
            self.text[block] = text
            self.found[key], self.key[block] = block, key

    def write(self, seq, text):
        """Replace the text in the last block of a sequence."""
        row = self.table[seq]
        block = row[-1]
        if self.refs[block] > 1:  # copy on write
            row[-1] = self.free.pop()
            self.text[row[-1]] = text
            self.refs[block] -= 1
        else:
            self.text[block] = text

    def fork(self, seq, child):
        """Another sequence with the same blocks."""
        self.table[child] = list(self.table[seq])
        for block in self.table[child]:
            self.refs[block] += 1

    def close(self, seq):
        """A sequence ends; a block that nobody holds any more is free, and can't be found."""
        for block in self.table.pop(seq):
            self.refs[block] -= 1
            if not self.refs[block]:
                self.found.pop(self.key.pop(block, None), None)
                self.free.append(block)
