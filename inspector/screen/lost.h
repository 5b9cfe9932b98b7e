/* What is known where events were lost.

A stretch is what lies between two places where events are missing. When one begins nothing is known: of a block until
it is handed out, goes to the free list or into quarantine, or is found in the index held by nobody; of a sequence until
it is admitted or forked. What is not known is not judged, here as by the detectors (`detectors/replay.py`). Of a stretch
itself all is seen, so that what was taken in it is given back as it was taken, whoever took it:

    a block      unknown  `references` and `leases` are those taken in this stretch; none may be left where it becomes
                          known, or some table would lead into a life that is over
                 known    as without any loss
    a sequence   unknown  its table is what was taken in this stretch; an entry that it gives back and did not take is
                          older, and then its block is unknown
                 known    its table is all there is; slots of unknown blocks count as written, for nobody judges them

Which steps are open, and what lies in the host tier, is not known any more, once events were lost.

Where a pool counts its blocks by state (WITNESS), the detectors count them by the last that was told of each, also
before the loss, or by those who let the events go (`timeline.py`, `sums.py`): `told`, `told_leases`. A block that is free
while they count it as held is `odd`. */

#ifndef KVSCOPE_SCREEN_LOST_H
#define KVSCOPE_SCREEN_LOST_H

#include "details.h"

static inline int
lost(const Live *self)
{
    return self->stretch > 0;
}

static inline int
is_known(const Live *self, const Block *block)
{
    return block->stretch == self->stretch && !block->unknown;
}

static int
is_leased(const Live *self, int64_t lease, int32_t block)
{
    return self->lease_room && lease_at(self->leases, self->lease_room, lease, block)->block >= 0;
}

/* Events were lost: nothing is known. */
static void
lose_all(Live *self)
{
    self->stretch++, self->resumes = 1;
    self->unknown = self->num_blocks;
    self->odd = self->sure = 0;
    memset(self->counts, 0, sizeof self->counts);
    self->entries = self->left_over = 0, self->digest = 0;
    self->opened = self->closed = 0;
    for (int64_t i = 0; i < self->lease_room; i++) {
        self->leases[i].block = -1;
    }
    self->lease_used = self->leased = 0;
}

/* The pool has another size. */
static void
count_again(Live *self)
{
    memset(self->counts, 0, sizeof self->counts);
    self->unknown = 0;
    for (int64_t i = 0; i < self->num_blocks; i++) {
        const Block *block = &self->blocks[i];
        self->unknown += !is_known(self, block);
        self->counts[block->state] += is_known(self, block);
    }
}

/* The first event of a block in a stretch. */
static void
forget_block(const Live *self, Block *block)
{
    if (!block->unknown && !block->odd) {
        block->told = block->references, block->told_leases = block->leases;
    }
    block->stretch = self->stretch, block->unknown = 1, block->odd = 0;
    block->references = block->leases = 0;
    block->copying = block->named = 0;
}

/* The first event of a sequence in a stretch. What it asked for and whether it holds anything stays as it was told. */
static void
forget_sequence(const Live *self, Sequence *sequence)
{
    sequence->stretch = self->stretch, sequence->unknown = 1;
    for (int64_t i = 0; i < sequence->room; i++) {
        sequence->table[i].newest.block = sequence->table[i].older.block = -1;
    }
    sequence->parent = 0, sequence->issued_to = 0;
    sequence->entries = sequence->reach = sequence->slid = sequence->doubled = 0, sequence->digest = 0;
    sequence->sched_seq = sequence->sched_step = -1;
    sequence->over = sequence->fresh = 0;
}

/* An event of a sequence, which may make it known; 0: as one that begins with a table it must not have. */
static inline int
meets_sequence(Live *self, const Traits *kind, Sequence *sequence)
{
    if (sequence->stretch != self->stretch) {
        forget_sequence(self, sequence);
    }
    int of_table = kind->is & (TAKES | GIVES | BEGINS | ENDS) || kind == &traits[K_SCHED];
    if (of_table && !sequence->met) {
        sequence->met = 1, self->met++;
    }
    if (!(kind->is & BEGINS && sequence->unknown)) {
        return 1;
    }
    sequence->unknown = 0;
    self->sure++;
    return sequence->entries == 0;
}

/* What the last event told of an unknown block, as the detectors count it: see `timeline.py`. */
static void
hears_of(Block *block, const Event *event)
{
    block->told_leases = event->before == 0 ? 0 : block->told_leases;
    block->told_leases += (event->kind == K_LEASE) - (event->kind == K_UNLEASE);
    block->told = event->after >= 0 ? event->after : block->told;
}

/* An event of an unknown block: what it says is sound in itself, and it may make the block known. */
static const char *
meets(Live *self, const Event *event, const Traits *kind, Block *block)
{
    int change = kind->references, alone = event->before == 0 && event->after == change;
    self->unjudged++;
    block->touched = 1;
    MUST(event->kind == K_ALLOC ? event->gen > block->gen : event->gen >= block->gen, "life");
    if (event->gen > block->gen) {
        MUST(block->references == 0, "life");
        block->gen = event->gen, block->told = block->told_leases = 0;
    }
    if (kind->is & COUNTS || event->after >= 0 || event->before >= 0) {
        MUST(event->before >= 0 && event->after >= 0 && event->after - event->before == change, "count");
    }
    hears_of(block, event);
    switch (event->kind) {
    case K_ALLOC:
        MUST(alone, "count");
        block->written = 0;
        break;
    case K_HIT:
        if (!alone) {
            return NULL;
        }
        block->written = (int32_t)self->block_size;
        break;
    case K_FREE:
    case K_SETTLE:
    case K_QUARANTINE:
        MUST(event->after <= 0, "count");
        block->odd = block->told != 0 || block->told_leases != 0;
        self->odd += block->odd;
        break;
    default:
        return NULL;
    }
    MUST(block->references == 0, "holders");
    block->unknown = 0;
    self->unknown--;
    self->counts[block->state = C_FREE]++; /* until the event has been looked at */
    block->references = change, block->leases = block->leased = 0;
    block->keys = 0, block->last_use = 0;
    block->unbound = block->named = block->worded = 0;
    block->place = (uint8_t)(kind->place - 1), block->published = event->kind == K_HIT;
    return NULL;
}

/* Whether the life of a block that a copy reads is not over. */
static int
lives_on(const Live *self, int64_t source, int64_t gen)
{
    if (source < 0 || source >= self->num_blocks) {
        return 0;
    }
    const Block *block = &self->blocks[source];
    return !is_known(self, block) || (block->gen == gen && (block->references > 0 || block->published));
}

/* A witness whose counts of blocks are those of the events. Where events were lost the detectors compare none, unless
all of them count the same pool. */
static void
counts_blocks(Live *self, const Told *told)
{
    int64_t sum = 0;
    for (int i = 0; told != NULL && i < COUNTED; i++) {
        sum += told->values[i];
    }
    self->compared++;
    if (sum != 0) {
        self->least_told = self->most_told == 0 || sum < self->least_told ? sum : self->least_told;
        self->most_told = sum > self->most_told ? sum : self->most_told;
    }
}

#endif
