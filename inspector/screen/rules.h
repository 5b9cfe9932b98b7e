/* The rules, one row after the other: each returns the name of the one that is broken, or NULL. */

#ifndef KVSCOPE_SCREEN_RULES_H
#define KVSCOPE_SCREEN_RULES_H

#include "lost.h"

/* -- the rules ----------------------------------------------------------------------------------------------------- */

static inline int64_t
low_of(int64_t range)
{
    return range & 0xFFFFFFFF;
}

static inline int64_t
between(int64_t value, int64_t lo, int64_t hi)
{
    return value < lo ? lo : value > hi ? hi : value;
}

/* The word that a table entry adds to the digest of its table: `digest_words` of schema.py. */
static inline uint64_t
digest_word(int32_t block, int32_t gen, int32_t lblock)
{
    uint64_t x = ((uint64_t)(int64_t)gen << 32 | (uint64_t)(int64_t)block) ^
                 ((uint64_t)(int64_t)lblock + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Whether this ALLOC begins a copy-on-write: ALLOC, LEASE of the source, COW. */
static int
starts_copy(Live *self, Py_ssize_t i, const Event *event)
{
    Event copy;
    if (self->breaks_off && i + 2 >= self->length && (i + 1 == self->length || kind_at(self, i + 1) == K_LEASE)) {
        return 1; /* it may, and nothing is judged of the table any more */
    }
    return kind_at(self, i + 2) == K_COW && read_at(self, i + 2, &copy) && copy.block == event->block &&
           copy.gen == event->gen && copy.seq_id == event->seq_id && copy.lblock == event->lblock;
}

/* Steps: they are counted upwards, and have as many sequences and tokens as they say. */

static const char *
step_begins(Live *self, const Event *event)
{
    MUST(event->step >= self->last_step, "steps");
    MUST(!self->max_seqs || event->aux <= self->max_seqs, "limits");
    self->last_step = event->step;
    self->begun++;
    if (lost(self)) {
        return NULL;
    }
    int64_t open = self->opened - self->closed;
    if (self->closed && (open == 0 || self->opened == self->open_room)) {
        memmove(self->open, self->open + self->closed, sizeof(Step) * (size_t)open);
        self->opened = open, self->closed = 0;
    }
    if (!grow((void **)&self->open, &self->open_room, self->opened + 1, sizeof(Step))) {
        return no_memory;
    }
    self->open[self->opened++] = (Step){event->aux, 0, 0};
    return NULL;
}

static const char *
step_ends(Live *self, const Event *event)
{
    MUST(!self->max_batched_tokens || event->aux <= self->max_batched_tokens, "limits");
    self->ended++;
    if (lost(self)) {
        return NULL;
    }
    MUST(self->ended <= self->begun, "step end");
    const Step *step = &self->open[self->closed++];
    int wrong = (step->told > 0 && step->told != step->rows) || (event->aux > 0 && event->aux != step->tokens);
    MUST(!wrong || step->rows == 0, "steps");
    return NULL;
}

static const char *
is_scheduled(Live *self, const Event *event)
{
    MUST(lost(self) || self->opened > self->closed, "steps");
    MUST(!self->max_model_len || event->aux >> 32 <= self->max_model_len, "limits");
    if (self->window) {
        int64_t needed = (int64_t)event->lblock - self->window + 1;
        MUST(low_of(event->aux) <= (needed > 0 ? needed : 0), "window");
    }
    if (!lost(self)) {
        Step *step = &self->open[self->opened - 1];
        step->rows++;
        step->tokens += event->fill > 0 ? event->fill : 0;
    }
    return NULL;
}

/* No more tokens are counted as cached than the hits behind the admission hold. */
static const char *
is_admitted(Live *self, Py_ssize_t i, const Event *event)
{
    if (event->aux > 0 && !lost(self)) {
        int64_t hits = 0;
        while (kind_at(self, i + 1 + hits) == K_HIT) {
            hits++;
        }
        MUST((self->breaks_off && i + 1 + hits == self->length) || event->aux <= hits * self->block_size, "admitted");
    }
    return NULL;
}

/* Nobody waits for blocks that are there, and the counters of the pool can be. */
static const char *
asks(Live *self, const Event *event, int64_t seq)
{
    Told told;
    if (!told_of(self, seq, &told) || told.count < 3) {
        return NULL;
    }
    int64_t needed = told.values[0], vacant = told.values[1], evictable = told.values[2];
    int refused = event->kind == K_REFUSED, side_by_side = refused && told.count > 3;
    MUST(needed >= 0 && vacant >= 0 && evictable >= 0, "counters");
    MUST(vacant <= self->num_blocks && evictable <= self->num_blocks - vacant, "counters");
    int64_t there = vacant + evictable, most = needed, kept = 0;
    MUST(!side_by_side || told.values[3] <= there, "counters");
    if (event->reason != NO_BLOCKS || event->seq_id < 0) {
        return NULL;
    }
    there = side_by_side ? told.values[3] : there;
    const Sequence *sequence = event->seq_id < self->known ? &self->sequences[event->seq_id] : NULL;
    if (!refused || sequence == NULL || !sequence->holding) {
        if (sequence == NULL || !sequence->submitted || (!refused && self->watermark < 0)) {
            return NULL;
        }
        int64_t blocks = sequence->tokens / self->block_size;
        blocks += blocks * self->block_size < sequence->tokens;
        most = blocks > needed ? blocks : needed;
        kept = refused ? 0 : (int64_t)(self->watermark * (double)self->num_blocks);
    }
    MUST(most > there || most + kept > there || most < 1, "needless wait");
    return NULL;
}

/* What `asks` must know of who asks. */
static const char *
moves_on(Live *self, const Event *event)
{
    if (event->seq_id < 0) {
        return NULL;
    }
    MUST(event->seq_id < MOST_SEQUENCES, "sequence exists");
    Sequence *sequence = sequence_of(self, event->seq_id);
    if (sequence == NULL) {
        return no_memory;
    }
    switch (event->kind) {
    case K_SUBMIT:
        sequence->tokens = event->aux, sequence->submitted = 1;
        break;
    case K_PREEMPT:
        sequence->holding = 0;
        if (event->aux >= sequence->tokens && event->aux < INT64_MAX) {
            sequence->tokens = event->aux + 1;
        }
        break;
    case K_FINISH:
    case K_ABORT:
        sequence->holding = 0;
        break;
    default:
        sequence->holding = 1;
    }
    return NULL;
}

static int64_t
never_free(const Live *self, int64_t num_blocks)
{
    int64_t count = 0;
    for (Py_ssize_t i = 0; i < self->reserved_count; i++) {
        count += self->reserved[i] < num_blocks;
    }
    return count;
}

static const char *
resizes(Live *self, const Event *event)
{
    int64_t size = event->aux, before = event->lblock;
    MUST(before == self->num_blocks && 0 <= size && size < MOST_BLOCKS, "resize");
    MUST(!(0 < self->max_blocks && self->max_blocks < size), "resize");
    self->counts[C_FREE] += size - before - never_free(self, size) + never_free(self, before);
    for (int64_t i = size; i < self->rooms; i++) {
        const Block *block = &self->blocks[i];
        MUST(!is_known(self, block) || (block->references == 0 && !block->published && block->place == FREE), "resize");
        MUST(!is_known(self, block) || lost(self) || block->last_use <= self->ended, "fence");
    }
    if (!grow((void **)&self->blocks, &self->rooms, size, sizeof(Block))) {
        return no_memory;
    }
    self->num_blocks = size;
    if (lost(self)) {
        count_again(self);
    }
    return NULL;
}

/* The pool's own counters are those that its events make. */
static const char *
witness(Live *self, const Told *told)
{
    MUST(self->left_over == 0, "witness");
    int compared = self->unknown == 0;
    if (told != NULL) {
        MUST(self->swaps || lost(self) || told->count <= 8 || told->values[8] <= 0, "host slots");
        MUST(!compared || self->odd == 0, "witness"); /* how an odd block is counted, others say */
        for (int i = 0; i < COUNTED; i++) {
            MUST(compared ? told->values[i] == self->counts[i] : told->values[i] >= 0, "witness");
        }
        MUST(told->values[6] >= 0, "witness");
        if (compared && (!lost(self) || self->sure == self->met)) {
            MUST(told->values[6] == self->entries, "witness");
            MUST(told->values[7] == 0 || (uint64_t)told->values[7] == self->digest, "witness");
        }
    }
    if (compared) {
        counts_blocks(self, told);
    }
    else {
        self->unjudged++;
    }
    return NULL;
}

/* A block just before a row, and what the row says of slots. */
typedef struct {
    Block *block;
    int references, place, published, written, unbound;
    int64_t lo, hi, slots; /* range of a WRITE; slots: that a COW copies */
} Was;

/* Where a block may go from where it is. */
static const char *
goes(const Event *event, const Was *was)
{
    int unheld = was->references == 0, held = was->place == HELD;
    switch (event->kind) {
    case K_ALLOC:
        MUST(unheld && was->place == FREE && !was->published, "transition");
        break;
    case K_SHARE:
    case K_PUBLISH:
        MUST(!unheld, "transition");
        break;
    case K_HIT:
        MUST(was->published && held, "transition");
        break;
    case K_LEASE:
        MUST((was->published || !unheld) && held, "transition");
        break;
    case K_FREE:
    case K_QUARANTINE:
        MUST(unheld && held && !was->published, "transition");
        break;
    case K_SETTLE:
        MUST(unheld && was->place == QUARANTINED, "transition");
        break;
    case K_EVICT:
        MUST(unheld, "transition");
        break;
    }
    return NULL;
}

/* Handles are of the current life; counts chain; places follow each other. */
static const char *
lives(Live *self, const Event *event, const Traits *kind, Was *was)
{
    MUST(0 <= event->block && event->block < self->num_blocks, "block exists");
    Block *block = was->block = &self->blocks[event->block];
    if (block->stretch != self->stretch) {
        forget_block(self, block);
    }
    if (block->unknown) {
        return meets(self, event, kind, block);
    }
    MUST(event->kind == K_ALLOC ? event->gen > block->gen : event->gen == block->gen, "life");
    block->gen = event->gen;

    was->references = block->references, was->place = block->place, was->published = block->published;
    was->written = block->written, was->unbound = block->unbound;
    block->references += kind->references, block->leases += kind->leases;
    if (kind->is & COUNTS || event->after >= 0 || event->before >= 0) {
        MUST(event->before == was->references && event->after == block->references && event->after >= 0, "count");
    }
    MUST(block->leases >= 0 && block->references >= block->leases, "holders");
    block->place = kind->place ? (uint8_t)(kind->place - 1) : block->place;
    block->published = kind->published ? (uint8_t)(kind->published - 1) : block->published;
    block->unbound = kind->unbound ? (uint8_t)(kind->unbound - 1) : block->unbound;
    block->touched = 1;
    return goes(event, was);
}

/* These slots were written, in this life or another one; 0: no memory. */
static inline int
write_down(const Live *self, Block *block, int64_t lo, int64_t hi)
{
    if (lo <= block->ever_written) {
        block->ever_written = hi > block->ever_written ? (int32_t)hi : block->ever_written;
        return 1;
    }
    if (block->beyond == NULL) {
        block->beyond = PyMem_Calloc((size_t)(self->block_size + 63) / 64, sizeof(uint64_t));
    }
    for (; block->beyond != NULL && lo < hi; lo++) {
        block->beyond[lo / 64] |= (uint64_t)1 << lo % 64;
    }
    return block->beyond != NULL;
}

/* Slots are written in order by the only holder; copies and publications find them written. */
static const char *
slots(Live *self, const Event *event, const Told *told, Was *was)
{
    Block *block = was->block;
    int64_t size = self->block_size, reach = 0;
    was->lo = low_of(event->aux), was->hi = event->aux >> 32;
    switch (event->kind) {
    case K_WRITE:
        MUST(was->lo < was->hi && was->hi <= size && (block->unknown || was->lo <= was->written), "slots");
        reach = was->hi;
        break;
    case K_COW:
        was->slots = told != NULL && told->values[2] == 0 ? told->values[3] : -1;
        MUST(0 <= was->slots && was->slots <= size, "copy details");
        reach = was->slots;
        break;
    case K_SWAP_IN:
        reach = event->fill >= 0 && event->fill <= size ? event->fill : 0; /* they count as written from then on */
        break;
    case K_LEASE:
        reach = told != NULL ? between(told->values[1], 0, size) : size;
        block->leased = reach > block->leased ? (int32_t)reach : block->leased;
        reach = 0;
        break;
    case K_ALLOC:
        block->written = block->leased = 0;
        break;
    case K_PUBLISH:
        MUST(block->unknown || was->written == size, "published full");
        break;
    }
    block->written = reach > block->written ? (int32_t)reach : block->written;
    return reach == 0 || write_down(self, block, event->kind == K_WRITE ? was->lo : 0, reach) ? NULL : no_memory;
}

/* A lease ends on the life that it began on. */
static const char *
lease_or_unlease(Live *self, const Event *event, Block *block)
{
    if (!room_for_a_lease(self)) {
        return no_memory;
    }
    Lease *found = lease_at(self->leases, self->lease_room, event->aux, event->block);
    int held = found->block >= 0;
    if (event->kind == K_LEASE) {
        if (held) {
            return "transfers";
        }
        *found = (Lease){event->aux, event->block, event->gen};
        self->lease_used++, self->leased++;
        block->references += block->unknown, block->leases += block->unknown;
        return NULL;
    }
    if (!held && block->unknown) {
        return NULL; /* it was taken before events were lost */
    }
    if (!held || found->gen != event->gen) {
        return "transfers";
    }
    found->block = -2;
    self->leased--;
    block->references -= block->unknown, block->leases -= block->unknown;
    return NULL;
}

static inline int
leads(const Entry *entry, const Event *event)
{
    return entry->block == event->block && entry->gen == event->gen;
}

/* Whose fork a sequence is; NULL for nobody's, or where that is not known. */
static const Sequence *
parent_of(const Live *self, const Sequence *sequence)
{
    if (sequence->parent < 1 || sequence->parent > self->known) {
        return NULL;
    }
    const Sequence *parent = &self->sequences[sequence->parent - 1];
    return parent->stretch != self->stretch || parent->unknown ? NULL : parent;
}

/* What a fork has of its parent, it has at the parent's place. */
static int
inherits(const Live *self, const Event *event, const Sequence *sequence)
{
    if (event->kind != K_SHARE || event->reason == RESIZED) {
        return 1;
    }
    const Sequence *parent = parent_of(self, sequence);
    return parent == NULL || (event->lblock < parent->room && leads(&parent->table[event->lblock].newest, event));
}

/* A place in a table is taken and given back alternately, as the same life of the same block. What is given back is
`given`; its block stays -1 where that was not taken in this stretch. */
static const char *
entries(
    Live *self, Py_ssize_t i, const Event *event, Sequence *sequence, Block *block, int copies, Entry *given, int *current)
{
    MUST(event->lblock < MOST_LOGICAL, "too large");
    Place *place = place_of(sequence, event->lblock);
    if (place == NULL) {
        return no_memory;
    }
    MUST(inherits(self, event, sequence), "inherits");
    if (event->kind != K_RELEASE) {
        if (place->newest.block >= 0) {
            int replaces = copies || (event->kind == K_SHARE && event->reason == RESIZED);
            MUST(place->older.block < 0 && replaces, "entry");
            place->older = place->newest;
            sequence->doubled++;
        }
        place->newest = (Entry){self->first + i, event->block, event->gen};
        block->references += block->unknown;
        return NULL;
    }
    if (sequence->unknown && !leads(&place->newest, event) && !leads(&place->older, event)) {
        MUST(block->unknown, "entry"); /* it was taken before events were lost */
        return NULL;
    }
    *current = place->older.block < 0;
    Entry *entry = *current ? &place->newest : &place->older;
    MUST(leads(entry, event), "entry");
    *given = *entry;
    entry->block = -1;
    sequence->doubled -= !*current;
    block->references -= block->unknown;
    return NULL;
}

/* Positions are written in order and never claimed twice; a step reads what is written. */
static const char *
positions(
    const Event *event, Sequence *sequence, const Sequence *parent, const Was *was, int64_t size, int copies, int current,
    int lost)
{
    int64_t base = (int64_t)event->lblock * size, before = sequence->reach, reach = 0;
    int64_t written = was->block == NULL ? 0 : was->block->unknown ? size : was->block->written, lo = low_of(event->aux), hi = event->aux >> 32;
    int is = traits[event->kind].is;
    if (is & (BEGINS | ENDS)) {
        sequence->issued_to = 0;
    }
    MUST(event->lblock >= 0 || !(is & OF_BLOCK), "positions"); /* what is of both is in a place of a table */
    if (sequence->unknown) {
        return NULL;
    }
    switch (event->kind) {
    case K_WRITE:
        /* Slots of unknown blocks count as written. */
        MUST(base + lo <= before, "written in order");
        if (was->block != NULL && !was->block->unknown && lo < was->written) { /* slots that are written already */
            MUST(lost ? base + lo >= sequence->issued_to : base + lo == before, "written in order");
        }
        reach = base + hi;
        sequence->issued_to = reach;
        break;
    case K_SHARE:
    case K_HIT:
        reach = base + written;
        if (event->kind == K_SHARE && event->reason != RESIZED && parent != NULL) {
            int64_t given = base + size < parent->issued_to ? base + size : parent->issued_to;
            sequence->issued_to = given > sequence->issued_to ? given : sequence->issued_to;
        }
        MUST(!sequence->fresh || sequence->slid < 0 || sequence->slid == event->lblock, "joined in order");
        MUST((before >= base || sequence->fresh) && (written == size || before <= reach), "joined in order");
        break;
    case K_TRUNCATE:
        MUST(event->aux >= 0 && event->aux <= before, "truncate");
        reach = event->aux;
        sequence->issued_to = reach < sequence->issued_to ? reach : sequence->issued_to;
        break;
    case K_COW:
        MUST(before >= base, "copied in order");
        reach = base + was->slots;
        if (event->reason != RESIZED && reach < sequence->issued_to) {
            sequence->issued_to = reach;
        }
        break;
    case K_SWAP_IN:
        MUST(before >= base, "copied in order");
        reach = base + written;
        break;
    case K_SCHED:
        MUST(lo <= hi && hi <= before, "read before written");
        break;
    case K_ALLOC:
        MUST(copies || base >= before, "new block");
        break;
    case K_RELEASE:
        MUST(!current || before <= base || event->reason == WINDOW, "still needed");
        if (current && event->reason != WINDOW && base < sequence->issued_to) {
            sequence->issued_to = base;
        }
        break;
    }
    MUST(reach < MOST_POSITIONS, "positions");
    sequence->reach = is & RESETS || reach > before ? reach : before;
    sequence->fresh = (is & BEGINS) != 0;
    return NULL;
}

/* The worker's table is the one that the events make; a sequence begins with an empty one and ends with nothing left. */
static const char *
tables(Live *self, const Event *event, Sequence *sequence, const Told *told, int current, int counts)
{
    int is = traits[event->kind].is, was_over = sequence->over;
    int64_t sign = !counts ? 0 : is & TAKES ? 1 : is & GIVES ? -1 : 0;
    if (sign) {
        uint64_t word = digest_word(event->block, event->gen, event->lblock) * (uint64_t)sign;
        sequence->entries += sign, self->entries += sign;
        sequence->digest += word, self->digest += word;
    }
    if (is & BEGINS) {
        MUST(sequence->entries == 0, "begins empty");
        sequence->over = 0;
        sequence->slid = 0;
        int forked = event->kind == K_FORK && 0 <= event->aux && event->aux < self->known;
        sequence->parent = forked ? (int32_t)event->aux + 1 : 0;
        if (event->kind == K_FORK && lost(self)) {
            sequence->slid = -1; /* the first entry that it is given says */
        }
        else if (event->kind == K_FORK && 0 <= event->aux && event->aux < self->known) {
            sequence->slid = self->sequences[event->aux].slid;
        }
    }
    if (is & TAKES && sequence->slid < 0) {
        sequence->slid = event->lblock;
    }
    if (event->kind == K_RELEASE && current && event->reason == WINDOW && event->lblock >= sequence->slid) {
        sequence->slid = (int64_t)event->lblock + 1;
    }
    if (event->kind == K_SCHED && told != NULL && !sequence->unknown) {
        MUST((uint64_t)told->values[0] == sequence->digest, "table");
        MUST(told->values[1] == sequence->entries + (sequence->slid > 0 ? sequence->slid : 0), "table");
    }
    sequence->over |= (is & ENDS) != 0;
    if (sequence->over) {
        self->left_over += was_over ? sign : sequence->entries;
        if (sequence->entries == 0 && sequence->room > 8) { /* as a rule it is not heard of again */
            PyMem_Free(sequence->table);
            sequence->table = NULL, sequence->room = 0;
        }
    }
    return NULL;
}

/* A hit finds what was published, at the same place, behind the same prefix, and its writes committed. */
static const char *
publication(Live *self, Py_ssize_t i, const Event *event, const Told *told, const Was *was)
{
    Block *block = was->block;
    int judged = !block->unknown && (block->named || !lost(self)); /* what it was published as is known */
    if (event->kind == K_PUBLISH) {
        block->named = 1, block->worded = told != NULL, block->published_at = event->lblock;
        if (told != NULL) {
            memcpy(block->words, told->values, sizeof(block->words));
        }
        return NULL;
    }
    MUST(block->unknown || !self->ordered || !was->unbound, "hit before its writes");
    MUST(!judged || block->worded == (told != NULL), "hit content");
    MUST(!judged || told == NULL || memcmp(block->words, told->values, sizeof(block->words)) == 0, "hit content");
    MUST(!judged || !block->named || block->published_at < 0 || event->lblock < 0 || block->published_at == event->lblock,
         "hit content");
    if (event->lblock > 0 && told != NULL && !(self->resumes && i == 0)) {
        Event front;
        MUST(read_at(self, i - 1, &front) && front.seq_id == event->seq_id, "hit prefix");
        int follows = front.kind == K_HIT && self->hit_row == i - 1 && self->hit_told &&
                      front.lblock == event->lblock - 1 && self->hit_prefix == told->values[0];
        MUST(front.kind == K_ADMIT || front.kind == K_RESUME || follows, "hit prefix");
    }
    self->hit_row = i, self->hit_told = told != NULL, self->hit_prefix = told != NULL ? told->values[2] : -1;
    return NULL;
}

/* A copy's source is leased by the row before it, and let go by the row after it has run. */
static const char *
copies_of(Live *self, Py_ssize_t i, const Event *event, const Told *told, Block *block)
{
    Event near;
    if (event->kind == K_COW) {
        int64_t source = told->values[0], life = told->values[1]; /* `slots` has seen that they are there */
        MUST(source != event->block, "copy source"); /* what is written of it by now is what the copy writes */
        if (i > 0 || !self->resumes) {
            MUST(read_at(self, i - 1, &near) && near.kind == K_LEASE && near.block == source && near.gen == life,
                 "copy source");
            MUST(self->blocks[near.block].unknown || self->blocks[near.block].written >= told->values[3], "copy source");
        }
        block->copied[0] = source, block->copied[1] = life, block->copied[2] = told->values[3];
        block->copying = 1;
        return NULL;
    }
    if (!block->copying && lost(self)) {
        return NULL; /* it was decided before */
    }
    if (block->copying && self->breaks_off && i + 1 == self->length) {
        MUST(lives_on(self, block->copied[0], block->copied[1]), "copy done");
    }
    else {
        MUST(block->copying && read_at(self, i + 1, &near) && near.kind == K_UNLEASE, "copy done");
        MUST(near.block == block->copied[0] && near.gen == block->copied[1], "copy done");
    }
    MUST(event->fill < 0 || event->fill >= block->copied[2], "copy done");
    return NULL;
}

/* A copy is of the block in whose place it comes. */
static int
replaces(const Event *event, const Sequence *sequence, const Told *told)
{
    if (told == NULL || event->lblock < 0 || event->lblock >= sequence->room) {
        return 1;
    }
    const Entry *older = &sequence->table[event->lblock].older; /* it may stand there from before events were lost */
    return older->block < 0 || (older->block == told->values[0] && older->gen == told->values[1]);
}

static const char *
of_block_and_sequence(Live *self, Py_ssize_t i, const Event *event, const Traits *kind, const Told *told)
{
    Was was = {NULL, 0, 0, 0, 0, 0, 0, 0, 0};
    const char *broken;
    if (kind->is & OF_BLOCK) {
        if ((broken = lives(self, event, kind, &was)) != NULL || (broken = slots(self, event, told, &was)) != NULL) {
            return broken;
        }
    }
    Block *block = was.block;
    if ((event->kind == K_LEASE || event->kind == K_UNLEASE) && (!self->swaps || lost(self)) &&
        (broken = lease_or_unlease(self, event, block)) != NULL) {
        return broken;
    }
    if ((event->kind == K_SWAP_OUT || event->kind == K_SWAP_IN) && lost(self) && told != NULL && told->values[1] >= 0) {
        MUST(block->unknown || is_leased(self, told->values[1], event->block), "transfers");
    }
    Sequence *sequence = NULL;
    Entry given = {-1, -1, -1};
    int current = 0, copies = event->kind == K_ALLOC && starts_copy(self, i, event);
    if (kind->is & OF_SEQUENCE) {
        MUST(0 <= event->seq_id && event->seq_id < MOST_SEQUENCES, "sequence exists");
        if ((sequence = sequence_of(self, event->seq_id)) == NULL) {
            return no_memory;
        }
        MUST(meets_sequence(self, kind, sequence), "begins empty");
        if (kind->is & (TAKES | GIVES)) {
            MUST(event->lblock >= 0, "positions");
            uint64_t key = (uint64_t)(uint32_t)event->seq_id << 32 | (uint64_t)(uint32_t)event->lblock;
            block->keys += kind->is & TAKES ? key : -key;
            broken = entries(self, i, event, sequence, block, copies, &given, &current);
            if (broken != NULL) {
                return broken;
            }
        }
        else if (block != NULL) { /* slots of its table are filled */
            int looked_up = block->unknown ? !sequence->unknown : sequence->doubled > 0;
            int there = looked_up && 0 <= event->lblock && event->lblock < sequence->room;
            MUST(!looked_up || (there && leads(&sequence->table[event->lblock].newest, event)), "writer");
            uint64_t key = (uint64_t)(uint32_t)event->seq_id << 32 | (uint64_t)(uint32_t)event->lblock;
            int alone = block->references - block->leases == 1 && block->keys == key && !block->published;
            MUST(block->unknown || alone, "writer");
            MUST(block->unknown || event->kind != K_WRITE || block->leases == 0 || was.lo >= block->leased, "lease");
            MUST(event->kind != K_COW || replaces(event, sequence, told), "copy source");
        }
        if ((broken = positions(event, sequence, parent_of(self, sequence), &was, self->block_size, copies, current,
                                lost(self))) != NULL ||
            (broken = tables(self, event, sequence, told, current, !(kind->is & GIVES) || given.block >= 0)) != NULL) {
            return broken;
        }
        if (event->kind == K_SCHED) {
            sequence->sched_seq = self->first + i, sequence->sched_step = self->begun - 1;
        }
    }
    if (block == NULL) {
        return NULL;
    }
    if ((event->kind == K_HIT || event->kind == K_PUBLISH) &&
        (broken = publication(self, i, event, told, &was)) != NULL) {
        return broken;
    }
    if ((event->kind == K_COW || event->kind == K_COPY_DONE) &&
        (broken = copies_of(self, i, event, told, block)) != NULL) {
        return broken;
    }
    if (block->unknown) {
        return NULL;
    }
    if (event->kind == K_RELEASE && given.since < sequence->sched_seq) {
        int64_t used = sequence->sched_step + 1;
        MUST(lost(self) || event->reason != RESIZED || given.block < 0 || used <= self->ended, "fence");
        block->last_use = used > block->last_use ? used : block->last_use;
    }
    if (event->kind == K_ALLOC) {
        /* Handed out when the last step that used it has completed. */
        MUST(lost(self) || block->last_use <= self->ended, "fence");
        block->copying = 0;
        self->odd -= block->odd, block->odd = 0;
    }
    MUST(lost(self) || event->kind != K_SETTLE || block->last_use <= self->ended + 1, "fence");

    int held = block->references - block->leases;
    int state = held > 1                      ? C_SHARED
                : held == 1                   ? C_PRIVATE
                : block->leases > 0           ? C_IN_TRANSIT
                : block->place == QUARANTINED ? C_QUARANTINED
                : block->published            ? C_CACHED
                                              : C_FREE;
    self->counts[block->state]--, self->counts[state]++;
    block->state = (uint8_t)state;
    return NULL;
}

/* The rule that this row breaks; NULL if none. */
static const char *
judge(Live *self, Py_ssize_t i, const Event *event)
{
    const char *broken = NULL;
    Told found, *told = NULL;
    for (Py_ssize_t k = 0; k < self->reserved_count; k++) {
        MUST(event->block != self->reserved[k], "reserved block");
    }
    const Traits *kind = &traits[event->kind];
    if (kind->values && told_of(self, self->first + i, &found)) {
        MUST(kind->exactly ? found.count == kind->values : found.count >= kind->values, "details");
        told = &found;
    }
    switch (event->kind) {
    case K_STEP_BEGIN:
        return step_begins(self, event);
    case K_STEP_END:
        return step_ends(self, event);
    case K_WITNESS:
        return witness(self, told);
    case K_MISMATCH:
        return "mismatch";
    case K_CHECK:
        MUST(event->aux < 0 || event->fill <= event->aux, "check");
        return NULL;
    case K_REFUSED:
    case K_WAIT:
        return asks(self, event, self->first + i);
    case K_GROW:
    case K_SHRINK:
        return resizes(self, event);
    case K_SCHED:
        broken = is_scheduled(self, event);
        break;
    case K_ADMIT:
        broken = is_admitted(self, i, event);
        /* fall through */
    case K_SUBMIT:
    case K_PREEMPT:
    case K_RESUME:
    case K_FORK:
    case K_FINISH:
    case K_ABORT:
        broken = broken != NULL ? broken : moves_on(self, event);
        break;
    }
    return broken != NULL || !(kind->is & (OF_BLOCK | OF_SEQUENCE)) ? broken
                                                                    : of_block_and_sequence(self, i, event, kind, told);
}

#endif
