/*
 * The simplex method in two phases on a full table: problems have a dozen variables. Bland's rule
 * chooses the pivots, so that it ends, and always in the same corner.
 */
#include "zero/plan/linear_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define TINY 1e-10
/* Of each row: what is left of its limit, and what it lacks at the start. */
#define MOST_COLUMNS (ZR_LINEAR_MOST_VARIABLES + 2 * ZR_LINEAR_MOST_ROWS)
#define MOST_PIVOTS 10000

typedef struct table {
    size_t n_rows, n_columns, first_lack;                   /* columns from there on are lacks */
    double rows[ZR_LINEAR_MOST_ROWS + 1][MOST_COLUMNS + 1]; /* last row: costs; last column:
                                                              limits */
    size_t basis[ZR_LINEAR_MOST_ROWS];                      /* the column of each row */
} table_t;

zr_linear_row_t *zr_linear_add(zr_linear_t *problem, double limit, bool is_equal) {
    assert(problem->n_rows < ZR_LINEAR_MOST_ROWS);
    zr_linear_row_t *row = &problem->rows[problem->n_rows++];
    *row = (zr_linear_row_t){.limit = limit, .is_equal = is_equal};
    return row;
}

/* Each row with a limit that is not negative, and a column of its own in the basis. */
static void fill(const zr_linear_t *problem, table_t *table) {
    memset(table, 0, sizeof(*table));
    table->n_rows = problem->n_rows;
    table->first_lack = problem->n_variables + problem->n_rows;
    table->n_columns = table->first_lack + problem->n_rows;
    for (size_t i = 0; i < problem->n_rows; i++) {
        const zr_linear_row_t *row = &problem->rows[i];
        double sign = row->limit < 0 ? -1 : 1;
        for (size_t k = 0; k < problem->n_variables; k++)
            table->rows[i][k] = sign * row->factors[k];
        if (!row->is_equal)
            table->rows[i][problem->n_variables + i] = sign;
        table->rows[i][MOST_COLUMNS] = sign * row->limit;
        bool is_there = !row->is_equal && sign > 0;
        table->basis[i] = is_there ? problem->n_variables + i : table->first_lack + i;
        table->rows[i][table->basis[i]] = 1;
    }
}

static void subtract(table_t *table, size_t from, size_t row, double factor) {
    for (size_t k = 0; k < table->n_columns; k++)
        table->rows[from][k] -= factor * table->rows[row][k];
    table->rows[from][MOST_COLUMNS] -= factor * table->rows[row][MOST_COLUMNS];
}

static void pivot(table_t *table, size_t row, size_t column) {
    double scale = 1 / table->rows[row][column];
    for (size_t k = 0; k < table->n_columns; k++)
        table->rows[row][k] *= scale;
    table->rows[row][MOST_COLUMNS] *= scale;
    for (size_t i = 0; i <= table->n_rows; i++)
        if (i != row && table->rows[i][column] != 0)
            subtract(table, i, row, table->rows[i][column]);
    table->basis[row] = column;
}

/* The first column that makes the sum less; n_columns: none does. */
static size_t find_column(const table_t *table, size_t n_columns) {
    for (size_t k = 0; k < n_columns; k++)
        if (table->rows[table->n_rows][k] < -TINY)
            return k;
    return table->n_columns;
}

/* The row that limits a column first; n_rows: none does. */
static size_t find_row(const table_t *table, size_t column) {
    size_t best = table->n_rows;
    double least = INFINITY;
    for (size_t i = 0; i < table->n_rows; i++) {
        double factor = table->rows[i][column];
        if (factor <= TINY)
            continue;
        double ratio = table->rows[i][MOST_COLUMNS] / factor;
        if (ratio < least - TINY || (ratio <= least + TINY && best < table->n_rows &&
                                     table->basis[i] < table->basis[best])) {
            least = ratio < least ? ratio : least;
            best = i;
        }
    }
    return best;
}

/* With columns before n_columns. */
static bool minimize(table_t *table, size_t n_columns) {
    for (int i = 0; i < MOST_PIVOTS; i++) {
        size_t column = find_column(table, n_columns);
        if (column == table->n_columns)
            return true;
        size_t row = find_row(table, column);
        if (row == table->n_rows)
            return false;
        pivot(table, row, column);
    }
    return false;
}

/* Costs of what is in the basis are taken out of the last row. */
static void price(table_t *table) {
    for (size_t i = 0; i < table->n_rows; i++)
        if (table->rows[table->n_rows][table->basis[i]] != 0)
            subtract(table, table->n_rows, i, table->rows[table->n_rows][table->basis[i]]);
}

/* First phase: nothing is lacking. */
static bool fill_lacks(table_t *table) {
    double *costs = table->rows[table->n_rows];
    for (size_t k = table->first_lack; k < table->n_columns; k++)
        costs[k] = 1;
    price(table);
    if (!minimize(table, table->n_columns) || fabs(costs[MOST_COLUMNS]) > 1e-7)
        return false;
    for (size_t i = 0; i < table->n_rows; i++) { /* lacks of nothing leave the basis */
        size_t k = 0;
        while (table->basis[i] >= table->first_lack && k < table->first_lack &&
               fabs(table->rows[i][k]) <= TINY)
            k++;
        if (table->basis[i] >= table->first_lack && k < table->first_lack)
            pivot(table, i, k);
    }
    return true;
}

bool zr_linear_solve(const zr_linear_t *problem, double *x_p) {
    table_t table;
    fill(problem, &table);
    if (!fill_lacks(&table))
        return false;
    memset(table.rows[table.n_rows], 0, sizeof(table.rows[0]));
    for (size_t k = 0; k < problem->n_variables; k++)
        table.rows[table.n_rows][k] = problem->costs[k];
    price(&table);
    if (!minimize(&table, table.first_lack))
        return false;
    for (size_t k = 0; k < problem->n_variables; k++)
        x_p[k] = 0;
    for (size_t i = 0; i < table.n_rows; i++)
        if (table.basis[i] < problem->n_variables)
            x_p[table.basis[i]] = fmax(0, table.rows[i][MOST_COLUMNS]);
    return true;
}
