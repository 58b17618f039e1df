-- Each transaction of the demo writes a branch and the history: at one point they are equal.
SELECT * FROM {{ ref('branches') }} WHERE balance <> history
