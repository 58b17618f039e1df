-- The catalog's two tables, a role that publishes and a role that only reads. Run it as the owner of the database:
--
--   psql -v ON_ERROR_STOP=1 -v writer=slotlake_lake -v reader=lake_reader -d catalog -f catalog.sql
--
-- A second run changes nothing. Passwords:  \password slotlake_lake
-- Without the tables made here, the writer would need CREATE on the schema, once.
SET client_min_messages = warning;

CREATE TABLE IF NOT EXISTS iceberg_tables (
    catalog_name varchar(255) NOT NULL,
    table_namespace varchar(255) NOT NULL,
    table_name varchar(255) NOT NULL,
    metadata_location varchar(1000),
    previous_metadata_location varchar(1000),
    iceberg_type varchar(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);
CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
    catalog_name varchar(255) NOT NULL,
    namespace varchar(255) NOT NULL,
    property_key varchar(255) NOT NULL,
    property_value varchar(1000) NOT NULL,
    PRIMARY KEY (catalog_name, namespace, property_key)
);

SELECT format('CREATE ROLE %I LOGIN', :'writer') WHERE to_regrole(quote_ident(:'writer')) IS NULL \gexec
SELECT format('CREATE ROLE %I LOGIN', :'reader') WHERE to_regrole(quote_ident(:'reader')) IS NULL \gexec
SELECT format('GRANT CONNECT ON DATABASE %I TO %I, %I', current_database(), :'writer', :'reader') \gexec
SELECT format('GRANT USAGE ON SCHEMA %I TO %I, %I', current_schema(), :'writer', :'reader') \gexec
GRANT SELECT, INSERT, UPDATE, DELETE ON iceberg_tables, iceberg_namespace_properties TO :"writer";
GRANT SELECT ON iceberg_tables, iceberg_namespace_properties TO :"reader";
