/* The first and last bytes of a stream of any length, and a file with all of it if bytes are elided. */
#ifndef CAPTURE_H
#define CAPTURE_H

#include "buffer.h"

struct capture {
    struct buffer head;
    uint8_t *ring;              /* the last `tail_cap` bytes after the head */
    size_t head_cap, tail_cap;
    uint64_t after_head;        /* number of bytes after the head */
    int spill;                  /* the open file, or -1 */
    bool spill_tried;
    uint64_t spilled;
    char spill_path[64];
};

void capture_init(struct capture *c, size_t head_cap, size_t tail_cap);
/* Add data. `may_spill`: write everything to a file as soon as a byte is elided. Never fails: without memory bytes are
   elided. */
void capture_add(struct capture *c, const uint8_t *data, size_t len, bool may_spill);
/* Put blob head, blob tail, u64 elided. */
void capture_put(const struct capture *c, struct buffer *out);
/* Return the spill file's path, or "". */
const char *capture_spill_path(const struct capture *c);
void capture_free(struct capture *c);

#endif
