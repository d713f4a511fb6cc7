/*
 * A run's message ends with advice: pieces with commas between, that name options. Those whose
 * options were all left to the search say what it has tried in vain.
 */
#include "examples/plan/refusal.h"

#include <string.h>

#define ADVICE "; try "
#define LAST_COMMA ", or "

/* Whether the search tries what there is of an option, "--name", of `length` characters. */
static bool is_tried(const plan_options_t *asked, const char *option, size_t length) {
    const train_options_t *run = &asked->run;
    const struct {
        const char *name;
        bool is_tried;
    } all[] = {{"--stage", asked->stage_open},
               {"--offload-optimizer", asked->optimizer_open || run->auto_optimizer},
               {"--offload-ratio", run->auto_optimizer},
               {"--state-in-host", run->auto_optimizer},
               {"--offload-params", asked->params_open || run->auto_params},
               {"--offload-param-ratio", run->auto_params},
               {"--params-in-host", run->auto_params},
               {"--recompute", asked->recompute_open},
               {"--micro-batch", asked->micro_batch_open}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strlen(all[i].name) == length && strncmp(all[i].name, option, length) == 0)
            return all[i].is_tried;
    return false;
}

typedef enum piece_kind { IS_NEW, IS_TRIED, CONTINUES } piece_kind_t;

/* A piece without an option goes on with the one before, unless it stands alone. */
static piece_kind_t kind_of(const plan_options_t *asked, const char *piece, size_t length) {
    const char *end = piece + length, *option = strstr(piece, "--");
    bool has_option = false;
    for (; option != NULL && option < end; option = strstr(option + 2, "--")) {
        size_t n = 2 + strspn(option + 2, "abcdefghijklmnopqrstuvwxyz-");
        has_option = true;
        if (!is_tried(asked, option, n))
            return IS_NEW;
    }
    return has_option ? IS_TRIED : CONTINUES;
}

/* `advice` begins behind "; try ". */
static void add_untried(const plan_options_t *asked, const char *advice, plan_words_t *words) {
    bool has_any = false, is_kept = true;
    for (const char *piece = advice; *piece != '\0';) {
        bool is_last = strncmp(piece, LAST_COMMA, strlen(LAST_COMMA)) == 0;
        const char *text = piece == advice ? piece : piece + strlen(is_last ? LAST_COMMA : ", ");
        const char *comma = strstr(text, ", ");
        size_t length = comma == NULL ? strlen(text) : (size_t)(comma - text);
        piece_kind_t kind = kind_of(asked, text, length);
        is_kept = kind == IS_NEW || (kind == CONTINUES && is_kept);
        if (is_kept)
            plan_words_add(words, "%s%.*s",
                           !has_any  ? ADVICE
                           : is_last ? LAST_COMMA
                                     : ", ",
                           (int)length, text);
        has_any |= is_kept;
        piece = text + length;
    }
}

static bool has_drives(const plan_options_t *asked) {
    return !asked->is_this || asked->run.config.nvme.paths[0] != '\0';
}

void plan_refusal(const plan_options_t *asked, const zr_run_rows_t *rows, plan_words_t *words) {
    const zr_run_row_t *nearest = &rows->all[rows->nearest];
    const char *message = nearest->one.message, *advice = strstr(message, ADVICE);
    bool may_place = is_tried(asked, "--offload-optimizer", strlen("--offload-optimizer")) ||
                     is_tried(asked, "--offload-params", strlen("--offload-params"));
    if (may_place && !has_drives(asked))
        plan_words_add(words, " (no drives were used: --nvme-path names them)");
    plan_words_add(words, "; the nearest to it, ");
    plan_words_placement(nearest, words);
    plan_words_add(words, nearest->recompute != ZR_RECOMPUTE_CHEAP ? " " : ", ");
    plan_words_lack(nearest, words);
    plan_words_add(words, ": %.*s",
                   (int)(advice != NULL ? advice - message : (long)strlen(message)), message);
    if (advice != NULL)
        add_untried(asked, advice + strlen(ADVICE), words);
}
